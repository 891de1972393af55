"""Made-up results of trainings, with curves that are known in closed form."""

from collections.abc import Mapping

import numpy as np

from hasfl.arrays import FloatN
from reproduction.results import RunResult

CHANCE = 0.1  # the accuracy of guessing, for ten classes
TIME_CONSTANT = 1000.0  # virtual seconds in which a run of speed 1 closes all but 1/e of its gap
# Mean seconds of a round by step, and its bits by arrow, of one made-up fleet.
PHASES = {
    "device_forward": 1.0,
    "activation_upload": 4.0,
    "server_forward": 0.3,
    "server_backward": 0.6,
    "gradient_download": 1.5,
    "device_backward": 2.0,
    "submodel_upload": 0.4,
    "submodel_download": 0.2,
}
BITS = {
    "activation_upload": 4e9,
    "gradient_download": 4e9,
    "submodel_upload": 2e8,
    "submodel_download": 2e8,
    "server_submodel_upload": 1e8,
    "server_submodel_download": 1e8,
}


def synthetic(
    scenario: str,
    strategy: str,
    seed: int = 0,
    *,
    speed: float = 1.0,
    ceiling: float = 0.8,
    wobble: float = 0.0,
    evaluations: int = 40,
    every: int = 10,
    round_seconds: float = 10.0,
    batch: float = 16.0,
    cut: float = 4.0,
    last: bool = True,
    text: str = "seed = 0",
    phases: Mapping[str, float] = PHASES,
    bits: Mapping[str, float] = BITS,
) -> RunResult:
    """A run whose accuracy rises from chance towards `ceiling`, twice as fast for a `speed` of 2.

    After t virtual seconds its accuracy is ceiling - (ceiling - CHANCE) exp(-speed t / TIME_CONSTANT), plus
    noise of standard deviation `wobble`, which `seed` draws. The model is evaluated every `every` rounds. The
    last model, unless `last` is false, is always 1 % worse than the served one.
    """
    rounds = every * np.arange(1, evaluations + 1)
    clock = round_seconds * rounds.astype(np.float64)
    noise = wobble * np.random.default_rng(seed).standard_normal(evaluations)
    accuracy: FloatN = np.clip(
        ceiling - (ceiling - CHANCE) * np.exp(-speed * clock / TIME_CONSTANT) + noise, 0, 1
    )
    return RunResult(
        scenario=scenario,
        scenario_text=text,
        strategy=strategy,
        seed=seed,
        commit="0" * 40,
        environment={"device": "cpu"},
        finished="2026-01-01",
        rounds=rounds,
        samples=(20 * batch * rounds).astype(np.int64),
        clock=clock,
        accuracy=accuracy,
        last_accuracy=accuracy - 0.01 if last else np.full(evaluations, np.nan),
        mean_batch=np.full(evaluations, batch),
        mean_cut=np.full(evaluations, cut),
        phases=dict(phases),
        bits=dict(bits),
        wall_seconds=1.0,
    )


def seconds_until(accuracy: float, *, speed: float = 1.0, ceiling: float = 0.8) -> float:
    """When the curve of such a run, without noise, passes an accuracy; `seconds_to` rounds it up."""
    return float(-np.log((ceiling - accuracy) / (ceiling - CHANCE)) * TIME_CONSTANT / speed)
