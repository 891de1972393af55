"use strict";
/* Curves with bands over seeds, stacked bars, and heat maps. */
const curves = (() => {
  const {el, svg} = page;
  const GRID = 200; // points at which the mean and the range over seeds are taken
  const DOTS_BELOW = 40; // points of a curve that are marked one by one

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
    for (let k = 0; k <= GRID; k++) {
      const where = begin + ((end - begin) * k) / GRID, values = series.map((each) => at(each, where)).filter((value) => value !== null);
      if (!values.length) continue;
      found.x.push(where);
      found.mean.push(values.reduce((sum, value) => sum + value, 0) / values.length);
      found.low.push(Math.min(...values));
      found.high.push(Math.max(...values));
      if (end === begin) break;
    }
    return found;
  }

  const path = (xs, ys) => xs.map((x, k) => `${k ? "L" : "M"}${x.toFixed(1)} ${ys[k].toFixed(1)}`).join("");

  /* Draws groups of curves: {name, kind, series: [{x, y}]}. `options`: x and y say what the axes are, `last` where the
     x axis ends, `level` a dashed line, `percent` how y is written. */
  function drawLines(groups, options, width, host) {
    const height = Math.round(Math.min(420, Math.max(260, width * 0.45))), left = 46, right = 10, top = 14, bottom = 40;
    const all = groups.flatMap(({series}) => series), last = options.last || Math.max(...all.map(({x}) => x.at(-1) ?? 0)) || 1;
    const shown = all.flatMap(({x, y}) => y.filter((_, k) => x[k] <= last)).concat(options.level ?? []);
    let low = Math.min(...shown), high = options.percent ? 1 : Math.max(...shown);
    if (high - low < 1e-12) low = high - Math.max(0.1, Math.abs(high) * 0.1);
    const steps = page.ticks(low - (high - low) * 0.04, high, 5);
    low = Math.min(steps[0] - (steps[0] > low ? steps[1] - steps[0] : 0), low);
    const [unit, size] = options.time ? page.timeUnit(last) : ["", 1];
    const px = (x) => left + (x / last) * (width - left - right), py = (y) => top + ((high - y) / (high - low)) * (height - top - bottom);
    const written = (y) => (options.percent ? `${page.digits(100 * y, 4)} %` : page.digits(y));
    const clip = `clip${Math.random().toString(36).slice(2)}`;
    const picture = svg("svg", {viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true"},
      svg("clipPath", {id: clip}, svg("rect", {x: left, y: 0, width: width - left - right + 6, height: height - bottom + 4})));
    for (const tick of steps) {
      picture.append(svg("line", {x1: left, x2: width - right, y1: py(tick), y2: py(tick), class: "grid"}),
        svg("text", {x: left - 6, y: py(tick) + 4, "text-anchor": "end"}, options.percent ? `${page.digits(100 * tick, 3)}` : page.digits(tick)));
    }
    for (const tick of page.ticks(0, last / size, width < 500 ? 4 : 8)) {
      picture.append(svg("text", {x: px(tick * size), y: height - bottom + 17, "text-anchor": "middle"}, page.count(tick)));
    }
    picture.append(svg("line", {x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, class: "axis"}),
      svg("text", {x: width - right, y: height - 6, "text-anchor": "end"}, options.time ? `${options.x} (${unit})` : options.x),
      svg("text", {x: 0, y: height - 6}, options.y));
    const drawing = svg("g", {"clip-path": `url(#${clip})`});
    picture.append(drawing);
    if (options.level !== undefined) {
      drawing.append(svg("line", {x1: left, x2: width - right, y1: py(options.level), y2: py(options.level), class: "goal"}));
      picture.append(svg("text", {x: width - right, y: py(options.level) + 15, "text-anchor": "end", class: "name"}, options.levelName));
    }
    const means = groups.map(({series}) => {
      if (series.length > 1) return band(series);
      return {x: series[0].x, mean: series[0].y, low: [], high: []};
    });
    groups.forEach(({kind, series}, g) => {
      const {x, mean, low: lows, high: highs} = means[g];
      const curve = (xs, ys, extra) => drawing.append(svg("path", {d: path(xs.map(px), ys.map(py)), class: `curve ${kind} ${extra}`}));
      if (lows.length) {
        const outline = path([...x, ...x.toReversed()].map(px), [...highs, ...lows.toReversed()].map(py));
        drawing.append(svg("path", {d: `${outline}Z`, class: `band ${kind}`}));
      }
      if (series.length > 1) series.forEach((each) => curve(each.x, each.y, "thin"));
      curve(x, mean, "");
      for (const each of series) {
        if (each.x.length > DOTS_BELOW || series.length > 1 && each.x.length > 1) continue;
        each.x.forEach((where, k) => drawing.append(svg("circle", {cx: px(where), cy: py(each.y[k]), r: 4, class: `dot ${kind}`})));
      }
    });
    const cursor = svg("line", {y1: top, y2: height - bottom, class: "cursor", visibility: "hidden"});
    picture.append(cursor);
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect(), x = event.clientX - box.left, where = ((x - left) / (width - left - right)) * last;
      if (where < 0 || where > last) return;
      const lines = groups.map(({name}, g) => [name, at({x: means[g].x, y: means[g].mean}, where)]).filter(([, value]) => value !== null);
      if (!lines.length) { page.hideTip(host); cursor.setAttribute("visibility", "hidden"); return; }
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.setAttribute("visibility", "visible");
      const when = options.time ? page.seconds(where) : `round ${Math.round(where)}`;
      page.tip(host, [when, ...lines.map(([name, value]) => `${name}: ${written(value)}`)].join("\n"), x, event.clientY - box.top);
    });
    picture.addEventListener("pointerleave", () => { page.hideTip(host); cursor.setAttribute("visibility", "hidden"); });
    return picture;
  }

  /* A figure of curves; `figure.update(groups, options)` shows others. */
  function lines(label) {
    let shown = null;
    const key = el("ul", {class: "legend"}), caption = el("figcaption", {});
    const picture = page.chart((width, host) => drawLines(...shown, width, host), label);
    const figure = el("figure", {}, key, picture, caption);
    figure.update = (groups, options) => {
      shown = [groups, options];
      key.replaceChildren(...groups.map(({name, kind}) => el("li", {}, el("span", {class: `swatch line ${kind}`}), name)));
      caption.textContent = options.caption ?? "";
      picture.redraw();
    };
    return figure;
  }

  /* Stacked bars: rows {name, parts: [{kind, name, value}]}. With `shares`, every bar is as long as the others. */
  function stack(rows, {shares, say, label, names}) {
    const total = ({parts}) => parts.reduce((sum, {value}) => sum + value, 0), longest = Math.max(...rows.map(total)) || 1;
    const draw = (width, host) => {
      const tall = 44, height = rows.length * tall;
      const picture = svg("svg", {viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true"});
      rows.forEach((row, k) => {
        const y = k * tall, whole = total(row);
        picture.append(svg("text", {x: 0, y: y + 13, class: "name"}, row.name), svg("text", {x: width, y: y + 13, "text-anchor": "end"}, say(whole)));
        let x = 0;
        for (const part of row.parts) {
          const wide = (part.value / (shares ? whole || 1 : longest)) * width;
          const bar = svg("rect", {x, y: y + 19, width: Math.max(0, wide), height: 16, class: `bar ${part.kind}`});
          bar.addEventListener("pointermove", (event) => {
            const box = picture.getBoundingClientRect();
            page.tip(host, `${row.name}\n${part.name}\n${say(part.value)}, ${page.share(part.value / (whole || 1))}`, event.clientX - box.left, event.clientY - box.top);
          });
          bar.addEventListener("pointerleave", () => page.hideTip(host));
          picture.append(bar);
          x += wide;
        }
      });
      return picture;
    };
    return el("figure", {}, el("ul", {class: "legend"}, names.map(([kind, name]) => el("li", {}, el("span", {class: `swatch ${kind}`}), name))), page.chart(draw, label));
  }

  /* A heat map: `rows` are names, `cells(r)` lists {from, to, value, text}; x runs from `first` to `last`. */
  function heat({rows, cells, first, last, most, label, sides, tips}) {
    const draw = (width, host) => {
      const tall = rows.length > 30 ? 14 : 22, top = 4, bottom = top + rows.length * tall, side = width >= 640 ? sides ?? [] : [];
      const labels = Math.min(Math.max(...rows.map((name) => name.length)) * 7.2 + 12, width * 0.3, 190), left = labels + side.length * 84;
      const x = (value) => left + ((value - first) / (last - first || 1)) * (width - left - 2);
      const picture = svg("svg", {viewBox: `0 0 ${width} ${bottom + 22}`, height: bottom + 22, "aria-hidden": "true"});
      const letters = Math.max(3, Math.floor((labels - 8) / 7));
      rows.forEach((name, r) => {
        const y = top + r * tall;
        picture.append(svg("text", {x: 0, y: y + tall / 2 + 4, class: "name"}, name.length > letters ? `${name.slice(0, letters - 1)}…` : name, svg("title", {}, name)));
        side.forEach((texts, k) => picture.append(svg("text", {x: labels + (k + 1) * 84 - 10, y: y + tall / 2 + 4, "text-anchor": "end"}, texts[r])));
        for (const cell of cells(r)) {
          const wide = Math.max(0.5, x(cell.to) - x(cell.from) - (cell.to - cell.from > (last - first) / 80 ? 1 : 0)), strength = cell.value / most;
          picture.append(svg("rect", {x: x(cell.from), y: y + 1, width: wide, height: tall - 2, class: cell.value ? "bar c0" : "hatch", "fill-opacity": cell.value ? (0.06 + 0.5 * strength).toFixed(2) : 1}));
          if (wide > 7 * cell.text.length + 6 && tall > 16) {
            picture.append(svg("text", {x: x(cell.from) + Math.min(wide, width) / 2, y: y + tall / 2 + 4, "text-anchor": "middle", class: "name"}, cell.text));
          }
        }
      });
      for (const tick of page.ticks(first, last, width < 500 ? 4 : 8)) picture.append(svg("text", {x: x(tick), y: bottom + 16, "text-anchor": x(tick) > width - 24 ? "end" : "middle"}, page.count(tick)));
      picture.addEventListener("pointermove", (event) => {
        const box = picture.getBoundingClientRect(), r = Math.floor((event.clientY - box.top - top) / tall);
        const where = first + ((event.clientX - box.left - left) / (width - left - 2)) * (last - first);
        const cell = rows[r] === undefined ? null : cells(r).find(({from, to}) => from <= where && where < to);
        if (cell) page.tip(host, tips(r, cell), event.clientX - box.left, event.clientY - box.top);
        else page.hideTip(host);
      });
      picture.addEventListener("pointerleave", () => page.hideTip(host));
      return picture;
    };
    return page.chart(draw, label);
  }

  return {at, band, lines, stack, heat};
})();
