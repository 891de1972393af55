"use strict";
/* The report: what the planner decided, and how good that was. */
(() => {
  const {el, data} = page;

  /* 3. Plans over time, the last plan, notes and estimated constants. */
  function plansOverTime(run, measure) {
    const {plans} = run, values = plans[measure], most = Math.max(1, ...values.flat());
    const until = (k) => (k + 1 < plans.round.length ? plans.round[k + 1] : run.rounds + 1);
    const cells = plans.names.map((_, i) => {
      const found = [];
      values.forEach((row, k) => {
        const before = found.at(-1);
        if (before && before.value === row[i]) before.to = until(k);
        else found.push({from: plans.round[k], to: until(k), value: row[i], text: row[i] ? String(row[i]) : ""});
      });
      return found;
    });
    const sides = plans.flops ? [plans.flops.map((each) => page.quantity(each, "FLOPS")), plans.up_rate.map((each) => page.quantity(each, "bps"))] : [];
    const what = measure === "batch" ? "batch size" : "cut";
    return el("figure", {}, strips.draw({rows: plans.names, cells: (r) => cells[r], first: 1, last: run.rounds + 1, most, sides,
      label: `The ${what} of every device over the rounds`,
      tips: (r, cell) => `${plans.names[r]}${sides.length ? ` (${sides.map((side) => side[r]).join(", ")})` : ""}\nrounds ${page.count(cell.from)} to ${page.count(cell.to - 1)}: ${cell.value ? `${what} ${cell.value}` : "takes no part"}`}),
    el("figcaption", {}, [`Rounds go from left to right. A darker cell is a larger ${what}; the largest is ${most}.`,
      sides.length ? "Beside the names: compute and uplink in the last round." : "",
      plans.in_all > plans.round.length ? `Shown are ${plans.round.length} of ${page.count(plans.in_all)} plans, evenly spaced.` : "",
      plans.devices > plans.names.length ? `Shown are ${plans.names.length} of ${page.count(plans.devices)} devices, evenly spaced.` : ""].filter(Boolean).join(" ")));
  }

  function lines(run) {
    const {notes, estimates} = run, names = Object.keys(estimates.columns);
    const some = (found, what) => (found.in_all > found.round.length ? `, ${found.round.length} of ${page.count(found.in_all)} ${what}` : "");
    const said = notes.round.length ? el("details", {open: notes.round.length <= 12}, el("summary", {}, `Why plans changed or stayed${some(notes, "notes")}`),
      page.table([{name: "round"}, {name: "note", words: true}], notes.round.map((round, k) => [page.count(round), notes.text[k]]))) : el("p", {class: "note"}, "The records of this run have no notes on its plans.");
    const number = (value) => (value === null ? "–" : page.digits(value));
    const estimated = estimates.round.length ? el("details", {open: estimates.round.length <= 6}, el("summary", {}, `Constants as they were estimated${some(estimates, "estimates")}`),
      page.table([{name: "round"}, ...names.map((name) => ({name: name.replaceAll("_", " ")}))], estimates.round.map((round, k) => [page.count(round), ...names.map((name) => number(estimates.columns[name][k]))])),
      el("p", {class: "note"}, "Constants that have one value for each layer are added up over the layers.")) : null;
    return [said, estimated].filter(Boolean);
  }

  function plans() {
    const place = el("div", {}), below = el("div", {});
    let measure = "batch";
    const changing = () => report.chosen().plans.in_all > 1;
    const draw = () => place.replaceChildren(changing() ? plansOverTime(report.chosen(), measure) : el("p", {}, "The plan never changed."));
    const measures = page.choice("Show", ["batch size", "cut"], (name) => {
      measure = name === "cut" ? "cut" : "batch";
      draw();
    });
    page.body("plans").append(el("div", {class: "controls"}, report.box(), measures), place, below);
    report.watch(() => {
      const run = report.chosen();
      measures.hidden = !changing();
      if (!run.plans.round.length) { place.replaceChildren(el("p", {}, "This run has no plans yet.")); below.replaceChildren(); return; }
      draw();
      below.replaceChildren(...(run.last_plan ? [el("h3", {}, `The plan of round ${page.count(run.rounds)}`), charts.planTable(run.last_plan)] : []), ...lines(run));
    });
  }

  /* 4. Objective, bound, gap, upgrades. */
  const PARTS = {T3: "is the last to send its activations", T4: "is the last to be done with its gradients",
    T5: "is the last to send its layers", T6: "is the last to receive its layers"};
  function quality() {
    const host = page.body("quality");
    const firsts = data.strategies.map((name) => data.runs.find((run) => run.strategy === name)), judged = firsts.filter((run) => typeof run.quality !== "string");
    if (judged.length) {
      const amount = ({rounds_known: known}, value) => (known ? page.seconds(value) : `${page.digits(100 * value)} %`);
      host.append(page.table(["strategy", "time with this plan", "best plan found", "no plan takes less than", "could be saved at most"].map((name) => ({name})),
        judged.map((run) => [run.strategy, ...["objective", "best", "lower_bound"].map((field) => amount(run.quality, run.quality[field])), page.share(run.quality.gap)])));
      for (const run of judged) {
        const found = run.quality, who = Object.entries(found.pace_setters).map(([part, name]) => `${charts.called(name)} ${PARTS[part]}`);
        host.append(el("p", {class: "note"}, `${run.strategy}: ${found.constants}. Who sets the pace: ${who.join("; ")}.${found.rounds_known ? "" : " The constants do not tell how many rounds training takes, so times are shares of this plan's time."}`));
        if (found.faults.length) host.append(el("p", {class: "bad"}, `A check of the best plan found faults: ${found.faults.join("; ")}.`));
        if (found.resources) host.append(upgrades(found, amount));
      }
    }
    for (const run of firsts) if (typeof run.quality === "string" && firsts.length > 1) host.append(el("p", {class: "note"}, `${run.strategy}: ${run.quality}`));
  }
  function upgrades(found, amount) {
    const tried = found.tried < found.resources ? ` The time was enough to try ${found.tried} of ${found.resources} resources.` : ` All ${found.resources} resources were tried.`;
    if (!found.upgrades.length) return el("p", {class: "note"}, `10 % more of any one resource would save too little to tell.${tried}`);
    return el("div", {}, el("h3", {}, "The most valuable upgrades"), page.table([{name: "10 % more", words: true}, {name: "would save"}, {name: "off by at most"}],
      found.upgrades.map((each) => [each.resource, amount(found, each.saved), amount(found, each.error)])), el("p", {class: "note"}, `${tried.trim()} After each upgrade, the best plan is found anew.`));
  }

  plans();
  quality();
})();
