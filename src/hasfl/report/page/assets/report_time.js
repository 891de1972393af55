"use strict";
/* The report: where the time went. `report` is the run that several charts look at. */
const report = (() => {
  const listeners = [];
  const boxes = [];
  return {
    run: 0,
    chosen: () => page.data.runs[report.run],
    /* The times of a round by their place, with the names of its parties; null without a place. */
    times(run, place) {
      const found = run.times[place];
      return found ? {...found, names: found.names.map((k) => run.parties[k])} : null;
    },
    watch(act) { listeners.push(act); act(); },
    /* A box that chooses the run of all these charts. */
    box() {
      if (page.data.runs.length < 2) return null;
      const field = page.select("Run", page.data.runs.map((run) => run.name), (k) => {
        report.run = k;
        boxes.forEach((each) => { each.selectedIndex = k; });
        listeners.forEach((act) => act());
      });
      boxes.push(field.querySelector("select"));
      return field;
    },
  };
})();

(() => {
  const {el, data} = page, host = page.body("time");
  const steps = Object.keys(charts.STEPS).filter((step) => data.runs.some((run) => run.steps[step] > 0));
  const words = (step) => `${charts.STEPS[step][0]} ${charts.STEPS[step][1].split(" (")[0]}`.trim();
  if (!steps.length) return;
  const kinds = new Map(steps.map((step) => [charts.kind(step), charts.kind(step) === "beside" ? "estimates and judging" : words(step)]));
  host.append(el("h3", {}, "The whole run, by step of its slowest devices"),
    curves.stack(data.runs.map((run) => ({name: `${run.strategy}, seed ${run.seed}`,
      parts: steps.map((step) => ({kind: charts.kind(step), name: words(step), value: run.steps[step] ?? 0}))})),
    {shares: true, say: page.seconds, label: "Seconds of every run by step", names: [...kinds]}));

  /* The round to begin with: one that has all steps and nothing beside training, if there is one. */
  function wholeRound(run) {
    const places = run.at.map((place) => run.times[place]), plain = places.findIndex((times) => times.submodel_upload && !times.beside);
    return Math.max(0, plain >= 0 ? plain : places.findIndex((times) => times.submodel_upload));
  }

  const place = el("div", {}), controls = el("div", {class: "controls"}), note = el("p", {class: "note"});
  host.append(el("h3", {}, "One round, device by device"), controls, place, note);
  const box = report.box();
  report.watch(() => {
    const run = report.chosen(), rounds = run.shown;
    if (!rounds.length) { place.replaceChildren(el("p", {}, "This run has no rounds to show.")); controls.replaceChildren(...[box].filter(Boolean)); note.textContent = ""; return; }
    const times = (k) => [report.times(run, run.at[k]), report.times(run, run.measured?.[k])];
    const start = wholeRound(run), figure = charts.gantt(...times(start));
    const slider = page.slider("Round", rounds.length, (k) => `${page.count(rounds[k])} of ${page.count(run.rounds)}`, (k) => figure.update(...times(k)));
    slider.move(start);
    controls.replaceChildren(...[box, rounds.length > 1 ? slider : null].filter(Boolean));
    place.replaceChildren(figure);
    note.textContent = rounds.length < run.rounds ? `The slider has ${page.count(rounds.length)} of ${page.count(run.rounds)} rounds, evenly spaced, so that this page stays small.` : "";
  });
})();
