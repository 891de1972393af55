"use strict";
/* How the training time reacts to each slider: one small chart for each. */
const reaction = (() => {
  const {el, svg} = page;
  const HEIGHT = 190, LEFT = 52, RIGHT = 14, TOP = 12, BOTTOM = 36;
  const say = ({unit}, value) => (unit === "×" ? `${page.digits(value)} ×` : page.count(value));
  const time = (value) => (page.data.rounds_known ? page.seconds(value) : `${page.digits(value)} times as long`);

  /* A line through the points that have a plan; a gap where there is none. */
  const path = (points) => points.map((point, k) => (point ? `${points[k - 1] ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}` : "")).join("");

  function draw(slider, state, width, host) {
    const low = Math.log(slider.positions[0]), high = Math.log(slider.positions.at(-1));
    const known = (dot) => dot.time !== undefined;
    const stops = slider.stops.map(({value, plan}) => ({value, time: page.data.plans[plan].time}));
    const dragged = [...state.trail].sort((p, q) => p.value - q.value);
    const dots = stops.filter(known), trail = dragged.filter(known);
    const now = state.now.time === undefined ? [] : [state.now];
    const most = Math.max(...[...dots, ...trail, ...now].map((dot) => dot.time)) * 1.08 || 1;
    const [unit, size] = page.data.rounds_known ? page.timeUnit(most) : ["×", 1];
    const x = (value) => LEFT + ((Math.log(value) - low) / (high - low || 1)) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - TOP - BOTTOM);
    const place = (dot) => (known(dot) ? [x(dot.value), y(dot.time)] : null);
    const picture = svg("svg", {viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, "aria-hidden": "true"});
    for (const tick of page.ticks(0, most / size, 3)) {
      picture.append(svg("line", {x1: LEFT, x2: width - RIGHT, y1: y(tick * size), y2: y(tick * size), class: "grid"}),
        svg("text", {x: LEFT - 8, y: y(tick * size) + 4, "text-anchor": "end"}, `${tick} ${unit}`));
    }
    let free = -Infinity;
    for (const {value} of slider.stops) {
      const text = say(slider, value), half = text.length * 3.6;
      if (x(value) - half < free) continue;
      free = x(value) + half + 8;
      picture.append(svg("text", {x: x(value), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle"}, text));
    }
    const own = slider.positions[slider.own];
    picture.append(svg("line", {x1: x(own), x2: x(own), y1: TOP, y2: HEIGHT - BOTTOM, class: "own-value"}));
    picture.append(svg("path", {d: path(stops.map(place)), class: "stops c0"}));
    for (const dot of dots) picture.append(svg("circle", {cx: x(dot.value), cy: y(dot.time), r: 4, class: "stop c0"}));
    if (trail.length > 1) picture.append(svg("path", {d: path(dragged.map(place)), class: "path c1"}));
    for (const dot of now) picture.append(svg("circle", {cx: x(dot.value), cy: y(dot.time), r: 6, class: "stop c1 now"}));
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect(), at = event.clientX - box.left;
      const [nearest] = [...dots, ...trail, ...now].sort((p, q) => Math.abs(x(p.value) - at) - Math.abs(x(q.value) - at));
      if (nearest) page.tip(host, `${slider.label}: ${say(slider, nearest.value)}\ntraining time: ${time(nearest.time)}`, at, event.clientY - box.top);
    });
    picture.addEventListener("pointerleave", () => page.hideTip(host));
    return picture;
  }

  function table(slider) {
    const rows = slider.stops.map(({value, plan}) => {
      const found = page.data.plans[plan];
      return [say(slider, value), found.trouble ?? time(found.time), found.words ?? "–"];
    });
    return el("details", {}, el("summary", {}, "The same as a table"),
      page.table([{name: slider.unit === "×" ? "factor" : slider.unit}, {name: "training time"}, {name: "plan", words: true}], rows));
  }

  /* The chart of one slider. `chart.update(value, time, moved)` marks the plan in use; the path of a drag is kept. */
  function chart(slider) {
    const state = {trail: [], now: {value: slider.positions[slider.own], time: page.data.plans[0].time}};
    const picture = page.chart((width, host) => draw(slider, state, width, host), `Training time over ${slider.label}; a table with the same numbers follows`);
    const figure = el("figure", {}, el("h3", {}, slider.label), picture, table(slider));
    figure.update = (value, found, moved) => {
      state.now = {value, time: found};
      state.trail = moved && page.data.served ? [...state.trail.filter((dot) => dot.value !== value), state.now] : [];
      picture.redraw();
    };
    return figure;
  }

  return {chart, say};
})();
