"use strict";
/* The report: did it converge, what was sent, who holds which labels, how to run it again. */
(() => {
  const {el, data} = page;
  const nameOf = (run) => `${run.strategy}, seed ${run.seed}`;

  /* 1. Accuracy against time and rounds. */
  const MEASURES = {held_out: "held-out samples", test: "the test set", loss: "training loss"};
  const TITLES = {held_out: "held-out accuracy", test: "test accuracy", loss: "training loss"};
  const AXES = {"virtual time": "seconds", rounds: "round", "wall time": "wall"};
  const SHOWN = 4; // times the fastest run, where the others take much longer
  const fewest = (measure) => Math.min(...data.runs.map((run) => run.curves[measure]?.value.length ?? 0));
  const choices = Object.keys(MEASURES).filter((measure) => data.runs.some((run) => run.curves[measure]));
  const preferred = choices.find((measure) => fewest(measure) >= 3) ?? choices[0];
  choices.sort((one, other) => (other === preferred) - (one === preferred));

  function convergence() {
    const host = page.body("convergence"), {level, rows} = data.verdict;
    if (!choices.length) return;
    const view = {measure: choices[0], axis: "virtual time", part: null};
    const figure = curves.lines("Curves of every strategy; the table below has the main numbers");
    const axes = Object.keys(AXES).filter((name) => data.runs.every((run) => Object.values(run.curves).every((curve) => curve[AXES[name]])));
    const groups = () => data.strategies.map((strategy, k) => ({
      name: strategy, k,
      series: data.runs.filter((run) => run.strategy === strategy && run.curves[view.measure])
        .map((run) => ({x: run.curves[view.measure][AXES[view.axis]], y: run.curves[view.measure].value})),
    })).filter(({series}) => series.length);
    const ends = () => groups().map(({series}) => Math.max(...series.map(({x}) => x.at(-1))));
    const much = () => Math.max(...ends()) > SHOWN * 1.5 * Math.min(...ends());
    const partChoice = el("div", {});
    function draw() {
      const accuracy = view.measure !== "loss", first = view.part !== "all" && much();
      const compared = level && !level.is_goal && data.runs.length > 1 && level.samples === MEASURES[view.measure];
      const matches = accuracy && (level?.is_goal || compared);
      const seeds = Math.max(...groups().map(({series}) => series.length));
      figure.update(groups(), {
        x: view.axis === "rounds" ? "rounds" : view.axis, time: view.axis !== "rounds",
        y: accuracy ? `accuracy on ${MEASURES[view.measure]} (%)` : "training loss", percent: accuracy,
        last: first ? SHOWN * Math.min(...ends()) : undefined,
        ...(matches ? {level: level.accuracy, levelName: level.is_goal ? `goal ${page.digits(100 * level.accuracy, 4)} %${view.measure === "test" ? " on held-out samples" : ""}` : "what all reach"} : {}),
        caption: [seeds > 1 ? "A thick line is the mean over seeds, a band goes from the lowest to the highest seed, and thin lines are single seeds." : "",
          first ? `The axis ends at ${SHOWN} times the fastest strategy; slower curves leave it to the right.` : ""].join(" ").trim(),
      });
    }
    function parts() {
      view.part = null;
      partChoice.replaceChildren(...(much() ? [page.choice("Show", ["first part", "all"], (name) => { view.part = name; draw(); })] : []));
    }
    host.append(el("div", {class: "controls"},
      page.choice("Against", axes, (name) => { view.axis = name; parts(); draw(); }),
      choices.length > 1 ? page.choice("Measure", choices.map((name) => TITLES[name]), (name) => {
        view.measure = choices.find((each) => TITLES[each] === name);
        parts();
        draw();
      }) : null, partChoice), figure);
    parts();
    draw();
    if (rows.length) host.append(arrivals(level, rows), el("p", {class: "note"}, CONVERGED));
  }

  const CONVERGED = "A run has converged when its best accuracy has gained less than 0.02 % over five evaluations (the paper's rule).";
  function spread(values, write) {
    if (!values) return "–";
    const [low, high] = [write(values.low), write(values.high)];
    return low === high ? write(values.mean) : el("span", {}, write(values.mean), el("small", {}, `${low} to ${high}`));
  }
  function arrivals(level, rows) {
    const percent = (value) => `${page.digits(100 * value, 4)} %`, what = `${percent(level.accuracy)} of ${level.samples}`;
    const columns = ["strategy", "seeds", `virtual time to ${what}`, "times as long", "rounds", "best accuracy", "converged after"];
    return page.table(columns.map((name) => ({name})), rows.map((row) => [
      row.strategy, row.reached === row.seeds ? `${row.seeds}` : `${row.reached} of ${row.seeds} reached it`,
      row.reached ? spread(row.seconds, page.seconds) : "not reached", row.times_as_long ? page.digits(row.times_as_long) : "–",
      spread(row.rounds, (value) => page.count(Math.round(value))), spread(row.best, percent),
      row.converged_runs ? el("span", {}, spread(row.converged, page.seconds), row.converged_runs < row.seeds ? el("small", {}, `${row.converged_runs} of ${row.seeds}`) : null) : "–"]),
    (k) => rows[k].times_as_long === 1 && rows.length > 1);
  }

  /* 5. Bytes by arrow. */
  const ARROWS = {
    activation_upload: ["a2", "activations, devices to edge server"], gradient_download: ["a4", "gradients, edge server to devices"],
    submodel_upload: ["b1", "sub-models, devices to fed server"], submodel_download: ["b3", "sub-models, fed server to devices"],
    server_submodel_upload: ["a3f", "sub-models, edge server to fed server"], server_submodel_download: ["a3b", "sub-models, fed server to edge server"],
    data_upload: ["a1", "samples, devices to edge server"],
  };
  const DOINGS = {reading: "for estimates", evaluation: "for judging"};
  function arrow(name) {
    const [doing] = name.split("_"), own = name.slice(doing.length + 1);
    return DOINGS[doing] ? ["beside", `${ARROWS[own]?.[1] ?? own} (${DOINGS[doing]})`] : ARROWS[name] ?? ["beside", name];
  }
  function traffic() {
    const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.bits).filter((name) => run.bits[name] > 0)))];
    if (!names.length) return;
    names.sort((one, other) => (arrow(one)[0] === "beside") - (arrow(other)[0] === "beside"));
    const kinds = new Map(names.map((name) => [arrow(name)[0], arrow(name)[0] === "beside" ? "for estimates and judging" : arrow(name)[1]]));
    const rows = data.runs.map((run) => ({name: nameOf(run), parts: names.map((name) => ({kind: arrow(name)[0], name: arrow(name)[1], value: run.bits[name] ?? 0}))}));
    const table = page.table([{name: "arrow", words: true}, ...data.runs.map((run) => ({name: nameOf(run)}))],
      [...names.map((name) => [arrow(name)[1], ...data.runs.map((run) => (run.bits[name] ? page.size(run.bits[name]) : "–"))]),
        ["in all", ...rows.map(({parts}) => page.size(parts.reduce((sum, {value}) => sum + value, 0)))]], (k) => k === names.length);
    page.body("traffic").append(
      curves.stack(rows, {say: page.size, label: "Bytes of every run; a table follows", names: [...kinds].map(([kind, name]) => [kind, name])}),
      el("details", {open: data.runs.length === 1}, el("summary", {}, "The same as a table"), table));
  }

  /* 6. Labels: a table whose cells are darker where a device holds more; with many classes, cells without numbers. */
  const MOST_COLUMNS = 30;
  function labels() {
    const held = data.labels, host = page.body("labels");
    if (typeof held === "string") return;
    const most = Math.max(1, ...held.counts.flat()), sum = (row) => row.reduce((total, each) => total + each, 0);
    const many = held.classes.length > MOST_COLUMNS;
    const cell = (value, k, device) => {
      const node = many ? el("td", {class: "dense", title: `${device}, ${held.classes[k]}: ${page.count(value)}`}) : el("td", {class: "cell"}, value ? page.count(value) : "·");
      if (value) node.style.setProperty("background", `color-mix(in srgb, var(--accent) ${Math.round(5 + ((many ? 90 : 50) * value) / most)}%, transparent)`);
      return node;
    };
    const heading = (name, kind = null) => el("th", {scope: "col", class: kind}, name);
    const classes = many ? [el("th", {scope: "colgroup", colspan: held.classes.length}, `${page.count(held.classes.length)} classes, ${held.classes[0]} to ${held.classes.at(-1)}`)] : held.classes.map((name) => heading(name, "cell"));
    host.append(el("div", {class: "wide", tabindex: 0, role: "region", "aria-label": "Samples of each class on every device"},
      el("table", {}, el("thead", {}, el("tr", {}, heading("device"), heading("samples"), classes)), el("tbody", {}, held.devices.map((name, i) =>
        el("tr", {}, el("td", {}, name), el("td", {}, page.count(sum(held.counts[i]))), held.classes.length ? held.counts[i].map((value, k) => cell(value, k, name)) : null))))));
    const seeds = new Set(data.runs.map((run) => run.seed));
    const others = seeds.size > 1 ? ` Shown is seed ${held.seed}; other seeds deal the samples out otherwise.` : "";
    const some = held.in_all > held.devices.length ? ` Shown are ${held.devices.length} of ${page.count(held.in_all)} devices, evenly spaced.` : "";
    if (others || some) host.append(el("p", {class: "note"}, (others + some).trim()));
  }

  /* 7. Scenario, environment, command. */
  function again() {
    const host = page.body("again"), same = (field) => new Set(data.runs.map((run) => JSON.stringify(run[field]))).size === 1;
    const texts = (field, title, write) => (same(field) ? data.runs.slice(0, 1) : data.runs).map((run) =>
      el("details", {open: same(field)}, el("summary", {}, same(field) ? title : `${title} of ${run.name}`), el("pre", {tabindex: 0}, write(run[field]))));
    host.append(el("pre", {tabindex: 0}, data.runs.map((run) => run.command).join("\n")),
      ...texts("scenario", "scenario.toml", (text) => text), ...texts("environment", "environment.json", (found) => JSON.stringify(found, null, 2)));
  }

  convergence();
  traffic();
  labels();
  again();
  document.documentElement.dataset.drawn = "true";
})();
