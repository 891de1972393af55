"""Puts the words of claims and their measures together, and says what was found, in words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

from hasfl.errors import InputError
from reproduction.claims import ablations, benchmarks, beyond, resources
from reproduction.claims.benchmarks import OURS
from reproduction.claims.beyond import ALGORITHM_2
from reproduction.claims.claim import (
    Claim,
    Evidence,
    Finding,
    Judged,
    Measure,
    Measurement,
    verdict_of,
)
from reproduction.claims_file import ClaimText
from reproduction.experiment import Experiment
from reproduction.results import Results, Served, percent

OF_THE_PAPER: Mapping[str, Measure] = benchmarks.MEASURES | resources.MEASURES | ablations.MEASURES
BEYOND: Mapping[str, Measure] = beyond.MEASURES
NOTHING = "–"
CALLED_HASFL = (OURS, ALGORITHM_2)  # what may stand for HASFL: what we built, and what the paper describes
THOUSAND = 1000  # from here on, three significant digits would read 1e+03


def claims_of(texts: Sequence[ClaimText], measures: Mapping[str, Measure]) -> list[Claim]:
    """Claims with their measures. Each text needs a measure of its name, and each measure a text."""
    if odd := sorted({text.name for text in texts} ^ set(measures)):
        raise InputError(
            f"every claim in claims.toml needs a measure of its name, and every measure a claim, "
            f"but one is missing for {', '.join(odd)}: add it, or remove the other"
        )
    return [
        Claim(
            name=text.name,
            words=text.words,
            paper=text.paper,
            number=text.number,
            figure=text.figure,
            because=text.because,
            measure=measures[text.name],
        )
        for text in texts
    ]


def finding(claim: Claim, experiments: Mapping[str, Experiment], results: Results, *, quick: bool) -> Finding:
    """What our results say about a claim. Reasons are about whole trainings, so small ones get none."""
    experiment = experiments.get(claim.figure)
    judged = {
        (ours, served): _judged(claim, experiment, ours, served, results)
        for ours in CALLED_HASFL
        for served in get_args(Served)
    }
    known = judged[OURS, "mean"].verdict != "not measured"
    return Finding(reason=claim.because if known and not quick else "", judged=judged)


def _judged(
    claim: Claim, experiment: Experiment | None, ours: str, served: Served, results: Results
) -> Judged:
    if experiment is None:
        return Judged(ours=NOTHING, verdict="not measured")
    made = with_ours(experiment, ours)
    own = results.only(made.keys)
    measured = claim.measure(Evidence(experiment=made, results=own, served=served))
    at = [measured.at if measured.values else "", lead_in_words(measured)]
    return Judged(
        ours=in_words(measured),
        verdict=verdict_of(measured, claim.number),
        at="; ".join(part for part in at if part),
    )


def with_ours(experiment: Experiment, ours: str) -> Experiment:
    """The same figure with this strategy in the role of HASFL. A figure without HASFL stays as it is."""
    if ours == OURS or OURS not in experiment.paper:
        return experiment

    def with_it(strategies: Sequence[str]) -> tuple[str, ...]:
        return ours, *(name for name in strategies if name not in CALLED_HASFL)

    panels = (replace(panel, strategies=with_it(panel.strategies)) for panel in experiment.panels)
    return replace(experiment, paper=with_it(experiment.paper), panels=tuple(panels))


def in_words(measured: Measurement) -> str:
    """The mean with the range over seeds; of an order, in how many comparisons it holds."""
    if measured.kind == "order" and measured.values:
        lacking = f" ({measured.missing} more not trained)" if measured.missing else ""
        return f"{sum(measured.values):.0f} of {len(measured.values)}{lacking}"
    if not measured.known:
        return NOTHING
    ends = [_number(measured, end) for end in (min(measured.values), max(measured.values))]
    spread = "" if len(measured.values) == 1 else f" ({' to '.join(ends)})"
    unit = {"factor": " ×", "points": " points"}.get(measured.kind, "")
    note = f", {measured.note}" if measured.note else ""
    return f"{_number(measured, measured.value)}{unit}{spread}{note}"


def lead_in_words(measured: Measurement) -> str:
    """The lowest and the highest lead over a range of accuracies, in words; empty where no lead is known."""
    if not measured.known or not measured.leads:
        return ""
    ends = dict.fromkeys(_number(measured, lead) for lead in measured.leads)
    return f"{' to '.join(ends)} × from {percent(measured.since)} on"


def _number(measured: Measurement, value: float) -> str:
    if math.isinf(value):
        return "not reached"
    if measured.kind == "points":
        return f"{value:+.2f}"
    return f"{value:,.0f}" if value >= THOUSAND else f"{value:.3g}"
