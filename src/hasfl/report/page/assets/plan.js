"use strict";
/* The page of a plan: sliders, the forecast, a round, the plan, and how the training time reacts. */
(() => {
  const {el, data} = page, own = data.plans[0];
  const positions = data.sliders.map((slider) => slider.own);
  const value = (k) => data.sliders[k].positions[positions[k]];
  const answer = (id, text) => { document.querySelector(`#${id} > .answer`).textContent = text; };

  /* What is drawn anew for every plan. */
  const facts = el("dl", {class: "facts"}), doubts = el("div", {}), state = el("p", {class: "note", role: "status"});
  const plain = ({submodel_upload: up, submodel_download: down, server_submodel_upload: edgeUp, server_submodel_download: edgeDown, stages, ...rest}) =>
    ({...rest, stages: stages.filter(({name}) => !name.startsWith("submodels"))});
  let shown = own, aggregated = false;
  const times = () => (aggregated ? shown.round : plain(shown.round));
  const gantt = charts.gantt(times()), table = el("div", {});
  const kinds = page.choice("Show", ["a round", "a round with an aggregation"], (name) => {
    aggregated = name !== "a round";
    gantt.update(times());
  });

  function fact(name, text, small = "") {
    return [el("div", {}, el("dt", {}, name), el("dd", {}, text, small ? el("small", {}, small) : null))];
  }
  /* How much longer or shorter training is than with the scenario's own values; empty if it is the same plan. */
  function change(plan) {
    if (plan === own || !own.time) return "";
    const more = plan.time / own.time - 1;
    return Math.abs(more) < 5e-4 ? "the same" : `${more > 0 ? "+" : "−"}${page.share(Math.abs(more))}`;
  }
  function headline(plan) {
    if (plan.trouble) return "no plan";
    const time = data.rounds_known ? page.seconds(plan.time) : `a round of ${page.seconds(plan.round_seconds)}`;
    return [time, change(plan)].filter(Boolean).join(data.rounds_known ? ", " : ", training time ");
  }
  function drawFacts(plan) {
    const often = plan.interval === 1 ? "after every round" : `every ${page.count(plan.interval)} rounds`;
    facts.replaceChildren(...[
      data.rounds_known ? fact("training time", page.seconds(plan.time), plan.range ? `${plan.range.map(page.seconds).join(" to ")}` : "")
        : fact("training time, compared with the scenario's own values", plan === own ? "the same" : `${page.digits(plan.time)} times as long`),
      data.rounds_known ? fact("rounds", page.count(Math.round(plan.rounds))) : [],
      fact("a round", page.seconds(plan.round_seconds), "with its share of aggregations"),
      fact("an aggregation", page.seconds(plan.aggregation_seconds), often),
      plan.gap === null ? [] : fact("a better plan saves", `at most ${page.share(plan.gap)}`, data.guesses ? "proved, for the mean ratio" : "proved"),
    ].flat());
  }
  function draw(plan) {
    doubts.replaceChildren(...(plan.trouble ? [plan.trouble] : plan.doubts).map((text) => el("p", {class: "bad"}, text)));
    for (const place of [facts, gantt, kinds, table]) place.hidden = Boolean(plan.trouble);
    if (plan.trouble) { answer("forecast", ""); answer("plan", ""); return; }
    shown = plan;
    answer("forecast", plan.answer);
    answer("plan", plan.sentence);
    drawFacts(plan);
    gantt.update(times());
    table.replaceChildren(charts.planTable(plan.plan));
  }

  /* Where plans come from: the file, or the server. */
  const reactions = data.sliders.map((slider) => reaction.chart(slider));
  let moved = -1; // the slider that moved last
  function use(plan, at = data.sliders.map((_, k) => value(k))) {
    draw(plan);
    state.textContent = headline(plan);
    reactions.forEach((chart, k) => chart.update(at[k], plan.time, k === moved));
  }
  function fromFile(k) {
    data.sliders.forEach((slider, other) => { if (other !== k) move(other, slider.own); });
    use(data.plans[data.sliders[k].stops[positions[k]].plan]);
  }
  /* One question at a time. Moves while the server plans are one next question, so the newest answer comes last. */
  let busy = false, wanted = false;
  async function ask() {
    if (busy) { wanted = true; return; }
    busy = true;
    wanted = false;
    state.classList.add("waiting");
    const at = data.sliders.map((_, k) => value(k)), began = performance.now();
    const setting = {...data.own, ...Object.fromEntries(data.sliders.map(({name}, k) => [name, at[k]]))};
    let plan = null;
    try {
      plan = await (await fetch("plan", {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(setting)})).json();
    } catch {
      wanted = false;
    }
    if (plan) use(plan, at);
    state.textContent = plan ? `${headline(plan)}; planned in ${page.seconds((performance.now() - began) / 1000)}`
      : "The server does not answer. Start hasfl plan with --serve again, and open the new address.";
    busy = false;
    if (wanted) ask();
    else state.classList.remove("waiting");
  }

  const controls = data.sliders.map((slider, k) => page.slider(slider.label, slider.positions.length,
    (at) => `${reaction.say(slider, slider.positions[at])}${slider.unit === "×" ? "" : ` ${slider.unit}`}`,
    (at) => {
      positions[k] = at;
      moved = k;
      if (data.served) ask();
      else fromFile(k);
    }));
  function move(k, at) {
    positions[k] = at;
    controls[k].move(at);
  }
  const back = el("button", {type: "button", on: {click: () => {
    data.sliders.forEach((slider, k) => move(k, slider.own));
    moved = -1;
    if (data.served) ask();
    else use(own);
  }}}, "Back to the scenario");

  const how = data.served ? "All sliders act together. Every move is planned anew, exactly, on this machine."
    : "The plans of this file were made beforehand, one slider at a time: moving a slider puts the others back. With --serve instead of --html, all sliders act together.";
  const fixed = data.sliders.some(({name}) => name === "devices") ? "" : " The number of devices has no slider, because the problem lists its devices as raw numbers.";
  document.getElementById("forecast").before(el("div", {class: "sliders", role: "group", "aria-label": "What if"}, controls,
    el("div", {class: "state"}, back, state)));
  page.body("forecast").append(facts, doubts, el("p", {class: "note"}, how + fixed),
    ...data.remarks.map((line) => (line.startsWith("    ") ? el("pre", {}, line.trim()) : el("p", {class: "note"}, line))));
  page.body("round").append(el("div", {class: "controls"}, kinds), gantt);
  page.body("plan").append(table);
  page.body("reaction").append(el("div", {class: "pair reactions"}, reactions), el("p", {class: "note"},
    "The dashed line is the scenario's own value. The large dot is the plan above. An uplink is faster to both servers. With another number of devices or another interval, noise and drift follow as in trainings; the rounds that infinitely large batches need count as the same."));
  controls.forEach((_, k) => move(k, positions[k]));
  use(own);

  /* The guesses, with the scenario's own values. */
  if (data.guesses) {
    const {columns, rows} = data.guesses;
    page.body("guesses").append(page.table(columns.map((name, k) => ({name, words: k === 0})), rows),
      el("p", {class: "note"}, "This holds for the scenario's own values."));
  }

  /* What --why and --sensitivity found. */
  if (data.advice) {
    const {pace, upgrades, limits, mistakes} = data.advice, host = page.body("advice");
    const list = (lines) => (lines.length ? el("ul", {}, lines.map((line) => el("li", {}, line))) : null);
    host.append(...[list(pace),
      upgrades.length ? page.table([{name: "10 % more", words: true}, {name: "would save"}, {name: "off by at most"}], upgrades) : null,
      list(limits), list(mistakes), el("p", {class: "note"}, "All of this holds for the scenario's own values.")].filter(Boolean));
  }
  document.documentElement.dataset.drawn = "true";
})();
