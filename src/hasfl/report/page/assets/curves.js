"use strict";
/* Curves with bands over seeds, and stacked bars. */
const curves = (() => {
  const {el} = page, {text} = plots;
  const GRID = 200; // points at which the mean and the range over seeds are taken
  const DOTS_BELOW = 40; // points of a curve that are marked one by one
  const COLOURS = 6, DASHES = ["solid", "dash", "dot", "dashdot"];

  /* The look of the k-th curve: when colours run out, lines are dashed. */
  const colourOf = (k) => `c${k % COLOURS}`;
  const dashOf = (k) => Math.min(DASHES.length - 1, Math.floor(k / COLOURS));

  /* The value of a curve between its points; null before the first and after the last. */
  function at({x, y}, where) {
    if (!x.length || where < x[0] || where > x.at(-1)) return null;
    let low = 0, high = x.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (x[middle] <= where) low = middle;
      else high = middle;
    }
    const width = x[high] - x[low];
    return width > 0 ? y[low] + ((y[high] - y[low]) * (where - x[low])) / width : y[high];
  }

  /* Mean, lowest and highest value over several curves, where all of them have values. */
  function band(series) {
    const begin = Math.max(...series.map(({x}) => x[0])), end = Math.min(...series.map(({x}) => x.at(-1)));
    const found = {x: [], mean: [], low: [], high: []};
    if (!(end >= begin)) return found;
    for (let k = 0; k <= (end > begin ? GRID : 0); k++) {
      const where = k === GRID ? end : begin + ((end - begin) * k) / GRID, values = series.map((each) => at(each, where));
      found.x.push(where);
      found.mean.push(values.reduce((sum, value) => sum + value, 0) / values.length);
      found.low.push(Math.min(...values));
      found.high.push(Math.max(...values));
    }
    return found;
  }

  /* The traces of one group: a band and thin lines where there are several seeds, and a thick line. */
  function tracesOf({name, k, series}, written) {
    const color = page.colour(colourOf(k)), line = {color, dash: DASHES[dashOf(k)], width: k === 0 ? 3 : 2};
    const quiet = {hoverinfo: "skip", type: "scatter", mode: "lines"};
    const main = (x, y, mode) => ({type: "scatter", mode, x, y, line, marker: {color, size: 7}, name: text(name), hovertemplate: written});
    if (series.length === 1) {
      const [{x, y}] = series;
      return [main(x, y, x.length > DOTS_BELOW ? "lines" : "lines+markers")];
    }
    const {x, mean, low, high} = band(series);
    return [
      {...quiet, x: [...x, ...x.toReversed()], y: [...high, ...low.toReversed()], fill: "toself", fillcolor: color, opacity: 0.16, line: {width: 0, color}},
      ...series.map((each) => ({...quiet, x: each.x, y: each.y, mode: each.x.length > 1 ? "lines" : "markers", opacity: 0.6, line: {...line, width: 1}, marker: {color, size: 7}})),
      main(x, mean, "lines"),
    ];
  }

  /* Curves as plotly wants them. `options`: x and y say what the axes are, `time` whether x are seconds, `last` where
     the x axis ends, `level` a dashed line, `percent` whether y are shares. */
  function drawn(groups, options, width) {
    const all = groups.flatMap(({series}) => series), last = options.last || Math.max(...all.map(({x}) => x.at(-1) ?? 0)) || 1;
    const [unit, size] = options.time ? page.timeUnit(last) : ["", 1], high = options.percent ? 100 : 1;
    const scaled = groups.map((group) => ({...group, series: group.series.map(({x, y}) => ({x: x.map((each) => each / size), y: y.map((each) => each * high)}))}));
    const level = options.level === undefined ? [] : [options.level * high], ink = page.colour("ink");
    const shown = scaled.flatMap(({series}) => series.flatMap(({x, y}) => y.filter((_, i) => x[i] <= last / size))).concat(level);
    const low = Math.min(...shown), top = options.percent ? 100 : Math.max(...shown), room = 0.05 * (top - low) || 0.1 * Math.abs(top) || 1;
    return {
      traces: scaled.flatMap((group) => tracesOf(group, options.percent ? "%{y:.2f} %" : "%{y:.4~g}")),
      layout: {
        height: Math.round(Math.min(420, Math.max(280, width * 0.45))), margin: {l: 44, r: 12, t: 30, b: 44}, hovermode: "x unified", uirevision: JSON.stringify([options, groups.length]),
        xaxis: {title: {text: options.time ? `${options.x} (${unit})` : options.x, standoff: 8}, range: [0, last / size], rangemode: "tozero", showgrid: false,
          hoverformat: ".4~g", unifiedhovertitle: {text: options.time ? `after %{x:.4~g} ${unit}` : "round %{x:,.0f}"}},
        yaxis: {range: [low - room, top + (options.percent ? 0.3 : 1) * room], nticks: 6},
        shapes: level.map((y) => ({type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: {color: ink, width: 1, dash: "dash"}})),
        annotations: [
          {text: text(options.y), xref: "paper", yref: "paper", x: 0, y: 1, xanchor: "left", yanchor: "bottom", showarrow: false, xshift: -36, yshift: 6},
          ...level.map((y) => ({text: text(options.levelName), xref: "paper", x: 1, y, xanchor: "right", yanchor: "top", showarrow: false, font: {color: ink}})),
        ],
      },
    };
  }

  /* A figure of curves; `figure.update(groups, options)` shows others. Groups are {name, k, series: [{x, y}]}, where k is
     the place of a group among all groups, which gives its look. The boxes of the legend hide and show them. */
  function lines(label) {
    let shown = null;
    const hidden = new Set(), key = el("ul", {class: "legend"}), caption = el("figcaption", {});
    const picture = plots.plot((width) => {
      const [groups, options] = shown, seen = groups.filter(({name}) => !hidden.has(name));
      return seen.length ? drawn(seen, options, width) : {...drawn(groups, options, width), traces: []};
    }, label);
    const toggle = (name, visible) => {
      if (visible) hidden.delete(name);
      else hidden.add(name);
      picture.redraw();
    };
    const entry = ({name, k}, alone) => {
      const look = [el("span", {class: `swatch line ${colourOf(k)} dash${dashOf(k)}`}), name];
      if (alone) return el("li", {}, look);
      const box = el("input", {type: "checkbox", checked: !hidden.has(name), on: {change: () => toggle(name, box.checked)}});
      return el("li", {}, el("label", {}, box, look));
    };
    const figure = el("figure", {}, key, picture, caption);
    figure.update = (groups, options) => {
      shown = [groups, options];
      key.replaceChildren(...groups.map((group) => entry(group, groups.length === 1)));
      caption.textContent = options.caption ?? "";
      picture.redraw();
    };
    return figure;
  }

  /* Stacked bars: rows {name, parts: [{kind, name, value}]}, with the same parts in every row. With `shares`, every bar is
     as long as the others. `say` writes a value, `names` are the legend's pairs of a kind and a name. */
  const TALL = 44, BAR = 0.38;
  function stack(rows, {shares, say, label, names}) {
    const totals = rows.map(({parts}) => parts.reduce((sum, {value}) => sum + value, 0)), longest = Math.max(...totals) || 1;
    const trace = (j) => ({
      type: "bar", orientation: "h", y: rows.map((_, r) => r), offset: -0.02, width: BAR,
      x: rows.map(({parts}, r) => parts[j].value / (shares ? totals[r] || 1 : longest)),
      marker: {color: page.colour(rows[0].parts[j].kind), line: {width: 0}},
      customdata: rows.map(({name, parts}, r) => text(`${name}: ${say(parts[j].value)}, ${page.share(parts[j].value / (totals[r] || 1))}`)),
      hovertemplate: `${text(rows[0].parts[j].name)}<br>%{customdata}<extra></extra>`,
    });
    const written = (r, right) => ({
      text: text(right ? say(totals[r]) : rows[r].name), xref: "paper", x: right ? 1 : 0, y: r, xanchor: right ? "right" : "left",
      yanchor: "bottom", showarrow: false, yshift: 0, borderpad: 0, font: right ? {} : {color: page.colour("ink")},
    });
    const build = () => ({
      traces: rows[0].parts.map((_, j) => trace(j)),
      layout: {
        barmode: "stack", height: rows.length * TALL, margin: {l: 0, r: 0, t: 0, b: 0}, hovermode: "closest", dragmode: false,
        xaxis: {visible: false, range: [0, 1], fixedrange: true}, yaxis: {visible: false, range: [rows.length - 0.5, -0.5], fixedrange: true},
        annotations: rows.flatMap((_, r) => [written(r, false), written(r, true)]),
      },
    });
    const key = el("ul", {class: "legend"}, names.map(([kind, name]) => el("li", {}, el("span", {class: `swatch ${kind}`}), name)));
    return el("figure", {}, key, plots.plot(build, label));
  }

  return {lines, stack};
})();
