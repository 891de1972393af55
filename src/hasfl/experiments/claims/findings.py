"""Puts the words of claims and their measures together, and says what was found, in words."""

import math
from collections.abc import Mapping, Sequence

from hasfl.documents.claims_file import ClaimText
from hasfl.errors import InputError
from hasfl.experiments.claims import ablations, benchmarks, beyond, resources
from hasfl.experiments.claims.claim import Claim, Evidence, Finding, Measure, Measurement, verdict_of
from hasfl.experiments.experiment import Experiment
from hasfl.experiments.results import Results, Served

OF_THE_PAPER: Mapping[str, Measure] = benchmarks.MEASURES | resources.MEASURES | ablations.MEASURES
BEYOND: Mapping[str, Measure] = beyond.MEASURES
NOTHING = "–"
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
    if experiment is None:
        return Finding(ours=NOTHING, verdict="not measured", at="", reason="", last=NOTHING)
    mean, last = (_measured(claim, experiment, results, served) for served in ("mean", "last"))
    verdict = verdict_of(mean, claim.number)
    return Finding(
        ours=in_words(mean),
        verdict=verdict,
        at=mean.at,
        reason="" if quick or verdict == "not measured" else claim.because,
        last="the same" if last == mean else _with_level(last),
    )


def _measured(claim: Claim, experiment: Experiment, results: Results, served: Served) -> Measurement:
    own = results.only(experiment.keys)
    return claim.measure(Evidence(experiment=experiment, results=own, served=served))


def _with_level(measured: Measurement) -> str:
    return f"{in_words(measured)} at {measured.at}" if measured.values and measured.at else in_words(measured)


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


def _number(measured: Measurement, value: float) -> str:
    if math.isinf(value):
        return "not reached"
    if measured.kind == "points":
        return f"{value:+.2f}"
    return f"{value:,.0f}" if value >= THOUSAND else f"{value:.3g}"
