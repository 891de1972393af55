"use strict";
/* Charts by plotly: as wide, as coloured and as printed as the rest of the page. */
const plots = (() => {
  const PAPER = 680; // pixels that a sheet of paper is wide
  const CLEAR = "rgba(0,0,0,0)";
  const FINE = !matchMedia("(pointer: coarse)").matches; // where a drag zooms; on a touch screen it scrolls the page
  const CONFIG = {
    displaylogo: false, displayModeBar: FINE ? "hover" : false, showTips: false,
    modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d", "autoScale2d"],
  };

  /* Plotly reads some tags in texts. Names are other people's text, so their letters stay letters. */
  const text = (value) => String(value).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  /* What all charts share; `own` is a chart's own layout. */
  function dressed(own, width) {
    const axis = {gridcolor: page.colour("line"), linecolor: page.colour("soft"), zeroline: false, automargin: true, fixedrange: !FINE};
    return {
      showlegend: false, paper_bgcolor: CLEAR, plot_bgcolor: CLEAR, dragmode: FINE ? "zoom" : false, width,
      font: {family: getComputedStyle(document.body).fontFamily, size: 12, color: page.colour("soft")},
      hoverlabel: {bgcolor: page.colour("paper"), bordercolor: page.colour("line"), font: {color: page.colour("ink")}, align: "left", namelength: -1},
      modebar: {bgcolor: CLEAR, color: page.colour("soft"), activecolor: page.colour("accent"), orientation: "v"},
      ...own, xaxis: {...axis, ...own.xaxis}, yaxis: {...axis, ...own.yaxis},
    };
  }

  /* A chart. `build(width)` returns its traces and its layout, in the colours of the moment. */
  function plot(build, label) {
    const host = page.sized((width) => {
      const {traces, layout} = build(width);
      Plotly.react(host, traces, dressed(layout, width), CONFIG);
    }, label);
    page.onLook((paper) => (paper ? host.redraw(PAPER) : host.redraw()));
    return host;
  }

  return {plot, text};
})();
