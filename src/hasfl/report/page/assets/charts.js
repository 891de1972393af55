"use strict";
/* Charts of a round and of a plan, for every page: charts.gantt and charts.planTable. */
const charts = (() => {
  const {el, svg, seconds, quantity, share, count} = page;
  const STEPS = page.data.steps; // by name: the paper's letter, what one party does, what all do together
  const kind = (step) => (step.startsWith("server_") ? (step.endsWith("forward") ? "a3f" : "a3b") : STEPS[step][0] || "beside"); // a class
  const FEW_ROWS = 26, SERVER = "edge server";
  const LEGEND = Object.keys(STEPS).filter((step) => STEPS[step][0]);

  /* The bars of each party, from the stages of a round and the seconds of its steps (round_columns in columns.py).

     Everybody begins a stage together, and the stage ends with its slowest parties. */
  function timeline(times) {
    const rows = [{name: SERVER, bars: []}, ...times.names.map((name) => ({name, bars: []}))], {stages} = times;
    const length = (step, k) => (k ? times[step]?.[k - 1] : typeof times[step] === "number" ? times[step] : times[`server_${step}`]) ?? 0;
    for (const {name, steps, start, end, slowest} of stages) {
      rows.forEach((row, k) => {
        if (!slowest.length) { row.bars.push({step: name, start, end}); return; } // all parties together
        let at = start;
        for (const step of steps) {
          const taken = length(step, k);
          if (taken > 0) row.bars.push({step, start: at, end: at + taken, setter: name in STAGES && slowest.includes(k)});
          at += taken;
        }
        if (!slowest.includes(k)) row.bars.push({wait: true, start: at, end});
      });
    }
    const end = stages.at(-1)?.end ?? 0, sum = (field) => stages.reduce((all, stage) => all + stage[field], 0);
    return {rows, end, barriers: stages.slice(0, -1).map((stage) => stage.end), paced: stages.filter(({name}) => name in STAGES),
      trained: stages.find(({name}) => name === "evaluation")?.start ?? end, waiting: sum("waited") / (sum("waited") + sum("worked")) || 0};
  }

  /* The round in one sentence. */
  const STAGES = {
    up: "until the edge server has all activations",
    down: "after the edge server",
    "submodels up": "until the fed server has all sub-models",
    "submodels down": "until all have their new sub-models",
  };
  const called = (name) => (/^\d+$/.test(name) ? `device ${name}` : name);
  function inWords(times, line) {
    const hidden = times.devices - times.names.length;
    const parts = line.paced.map(({name, slowest: [first, ...alike], start, end}) =>
      `${called(line.rows[first].name)}${alike.length ? ` and ${alike.length} more set` : " sets"} the pace ${STAGES[name]} (${seconds(end - start)})`);
    const some = hidden > 0 ? ` Shown are the ${times.names.length} slowest of ${count(times.devices)} devices.` : "";
    const waiting = times.names.length > 1 ? ` Its devices wait ${share(line.waiting)} of that time.` : "";
    return `The round takes ${seconds(line.end)}.${waiting}${parts.length ? ` ${parts.join("; ")}.` : ""}${some}`;
  }

  function hatching() {
    return svg("defs", {}, svg("pattern", {id: "waiting", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"},
      svg("rect", {width: 6, height: 6, class: "hatch"}), svg("line", {x1: 0, y1: 0, x2: 0, y2: 6, class: "hatch-line"})));
  }
  const shortened = (name, letters) => (name.length > letters ? `${name.slice(0, letters - 1)}…` : name);
  const barTitle = (row, bar) => {
    const when = `${seconds(bar.end - bar.start)}, from ${seconds(bar.start)} on`;
    if (bar.wait) return `${row.name} waits\n${when}`;
    const [mark, words] = STEPS[bar.step];
    return `${row.name}${bar.setter ? ", which sets the pace" : ""}\n${mark ? `${mark} ` : ""}${words}\n${when}`;
  };

  /* Where the time axis ends. Judging comes last; where it takes longer than training, most of it is cut off. */
  const LONG = 2, BEYOND = 1.15;
  function shownSeconds(lines) {
    const end = Math.max(...lines.map((line) => line.end)) || 1, trained = Math.max(...lines.map((line) => line.trained));
    return trained > 0 && end > LONG * trained ? BEYOND * trained : end;
  }

  /* Draws a round, or two of them in two lanes: as it was predicted, and below it as it was measured. */
  function drawRound(lines, width, host) {
    const lanes = lines.length, names = lines[0].rows.map((row) => row.name);
    const height = (names.length > FEW_ROWS ? 15 : 24) + (lanes - 1) * 10, top = 26;
    const labels = Math.min(Math.max(...names.map((name) => name.length)) * 7.2 + 14, width * 0.3, 190);
    const longest = shownSeconds(lines), [unit, size] = page.timeUnit(longest);
    const x = (time) => labels + Math.min(1, time / longest) * (width - labels - 2);
    const bottom = top + names.length * height;
    const picture = svg("svg", {viewBox: `0 0 ${width} ${bottom + 6}`, height: bottom + 6, "aria-hidden": "true"}, hatching());
    for (const tick of page.ticks(0, longest / size, width < 500 ? 4 : 8)) {
      const at = x(tick * size);
      picture.append(svg("line", {x1: at, x2: at, y1: top - 6, y2: bottom, class: "grid"}),
        svg("text", {x: at, y: 12, "text-anchor": at > width - 30 ? "end" : "middle"}, tick === 0 ? `0 ${unit}` : `${tick}`));
    }
    const letters = Math.max(3, Math.floor((labels - 10) / 7));
    names.forEach((name, k) => {
      const y = top + k * height, pace = lines[0].paced.some(({slowest}) => slowest.includes(k));
      picture.append(svg("text", {x: 0, y: y + height / 2 + 4, class: pace ? "pace" : "name"}, shortened(name, letters), svg("title", {}, name)));
      lines.forEach((line, lane) => {
        const tall = (height - 5) / lanes, at = y + 2 + lane * (tall + 1);
        for (const bar of line.rows[k].bars) {
          const look = bar.wait ? "wait" : `bar ${kind(bar.step)}${bar.setter ? " setter" : ""}`;
          picture.append(svg("rect", {x: x(bar.start), y: at, width: Math.max(0, x(bar.end) - x(bar.start)), height: tall - (lanes > 1 ? 1 : 0), rx: 2, class: look}));
        }
      });
    });
    for (const time of lines[0].barriers) picture.append(svg("line", {x1: x(time), x2: x(time), y1: top - 2, y2: bottom, class: "barrier"}));
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect(), time = ((event.clientX - box.left - labels) / (width - labels - 2)) * longest;
      const k = Math.floor((event.clientY - box.top - top) / height);
      const lane = Math.min(lanes - 1, Math.floor((((event.clientY - box.top - top) % height) / height) * lanes));
      const row = lines[lane]?.rows[k], bar = row?.bars.find((each) => each.start <= time && time < each.end);
      if (bar) page.tip(host, (lanes > 1 ? (lane ? "measured: " : "predicted: ") : "") + barTitle(row, bar), event.clientX - box.left, event.clientY - box.top);
      else page.hideTip(host);
    });
    picture.addEventListener("pointerleave", () => page.hideTip(host));
    return picture;
  }

  function legend(rounds) {
    const used = LEGEND.filter((step) => rounds.flatMap((times) => [times[step], times[`server_${step}`]].flat()).some((value) => value > 0));
    const item = (look, text) => el("li", {}, el("span", {class: `swatch ${look}`}), text);
    const extra = new Set(rounds.flatMap((times) => Object.keys(times.beside ?? {})));
    return el("ul", {class: "legend"},
      used.map((step) => item(kind(step), `${STEPS[step][0]} ${STEPS[step][1]}`)),
      [...extra].map((step) => item("beside", STEPS[step][1])), item("waiting", "waits"), item("setter", "sets the pace"));
  }

  /* The seconds of every step as a table, for those who cannot see or hover. */
  function stepsTable(times) {
    const steps = Object.keys(STEPS).filter((step) => Array.isArray(times[step]) || times[`server_${step}`] !== undefined || typeof times[step] === "number");
    const cell = (value) => (value > 0 ? seconds(value) : "–");
    const server = steps.map((step) => cell(typeof times[step] === "number" ? times[step] : times[`server_${step}`] ?? 0));
    const rows = times.names.map((name, i) => [name, ...steps.map((step) => cell(Array.isArray(times[step]) ? times[step][i] : 0))]);
    return page.table([{name: "party"}, ...steps.map((step) => ({name: `${STEPS[step][0]} ${step.replaceAll("_", " ")}`}))], [[SERVER, ...server], ...rows]);
  }

  /* A figure of one round. `figure.update(times, measured)` shows another round; `measured` may be left out. */
  function gantt(times, measured = null) {
    let lines = [];
    const key = el("div", {}), caption = el("figcaption", {"aria-live": "polite"});
    const picture = page.chart((width, host) => drawRound(lines, width, host), "What every device does in the round; a table with the same numbers follows");
    const figures = el("details", {}, el("summary", {}, "The same as a table"));
    const figure = el("figure", {class: "gantt"}, key, picture, caption, figures);
    let tabled = null;
    const fill = () => {
      if (figures.open && tabled !== times) {
        tabled = times;
        figures.replaceChildren(figures.firstChild, stepsTable(times));
      }
    };
    figures.addEventListener("toggle", fill);
    figure.update = (next, seen = null) => {
      times = next;
      lines = [timeline(next), ...(seen ? [timeline(seen)] : [])];
      key.replaceChildren(legend([next, seen].filter(Boolean)));
      const cut = shownSeconds(lines) < Math.max(...lines.map((line) => line.end)) ? " Judging the model takes longer than the rest of the round; the chart cuts it off on the right." : "";
      const told = seen ? `Predicted, in the upper bars: ${inWords(next, lines[0])} Measured, in the lower bars: ${inWords(seen, lines[1])}` : inWords(next, lines[0]);
      caption.textContent = told + cut;
      picture.redraw();
      fill();
    };
    figure.update(times, measured);
    return figure;
  }

  /* A plan beside the resources of its devices (plan_columns in columns.py). Neighbours that are alike share a row. */
  const MOST_GROUPS = 60;
  function planTable(plan) {
    const keys = Object.keys(plan).filter((key) => key !== "names" && key !== "devices");
    const alike = (i, j) => keys.every((key) => plan[key][i] === plan[key][j]);
    let groups = [];
    plan.names.forEach((name, i) => {
      if (i && alike(i, i - 1)) groups.at(-1).last = i;
      else groups.push({first: i, last: i});
    });
    const all = groups.length, slowest = (part) => plan[part].indexOf(Math.max(...plan[part]));
    if (all > MOST_GROUPS) groups = groups.sort((p, q) => plan.up[q.first] + plan.down[q.first] - plan.up[p.first] - plan.down[p.first]).slice(0, MOST_GROUPS);
    const pace = [slowest("up"), slowest("down")], sets = ({first, last}) => pace.some((i) => first <= i && i <= last);
    const name = ({first, last}) => (first === last ? plan.names[first] : `${plan.names[first]} to ${plan.names[last]}`);
    const rows = groups.map((group) => {
      const i = group.first;
      return [el("span", {}, name(group), sets(group) ? el("span", {class: "mark", title: "sets the pace"}, " ◂") : null),
        quantity(plan.flops[i], "FLOPS"), quantity(plan.up_rate[i], "bps"), quantity(plan.down_rate[i], "bps"),
        count(plan.batch_sizes[i]), count(plan.cuts[i]), seconds(plan.up[i]), seconds(plan.down[i]),
        share(plan.memory_needed[i] / plan.memory[i])];
    });
    const columns = ["device", "compute", "uplink", "downlink", "batch size", "cut", "before the server", "after the server", "memory used"];
    const some = (plan.devices > plan.names.length ? `Of ${count(plan.devices)} devices, these are among the ${count(plan.names.length)} slowest. ` : "")
      + (all > MOST_GROUPS ? `Shown are the ${MOST_GROUPS} slowest of ${count(all)} groups of devices that are alike. ` : "");
    return el("div", {}, page.table(columns.map((each) => ({name: each})), rows, (k) => sets(groups[k])),
      el("p", {class: "note"}, `${some}◂ sets the pace before or after the edge server. A cut is the number of layers that the device holds.`));
  }

  return {timeline, gantt, planTable, called, STEPS, kind};
})();
