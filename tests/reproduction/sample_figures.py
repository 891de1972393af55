"""A small experiment of every kind, with made-up results."""

from reproduction.experiment import Drawing, Experiment, Panel, Point
from reproduction.results import RunResult
from tests.reproduction.synthetic import BITS, PHASES, synthetic

PAPER = ("hasfl", "rbs+hams", "habs+rms", "rbs+rms", "rbs+rhams")
BESIDE = ("hasfl-bcd", "fl", "sfl", "sl", "cl")
SEEDS = (0, 1, 2)
SPEEDS = dict(zip((*PAPER, *BESIDE), (3.0, 1.8, 0.9, 0.4, 1.3, 2.8, 0.25, 0.7, 0.12, 1.1), strict=True))
BATCHES = tuple(f"b={b}+cut=8" for b in (4, 8, 16, 32, 64))
CUTS = tuple(f"b=16+cut={cut}" for cut in (2, 4, 8, 12))
SCALES = (0.25, 0.5, 1.0, 2.0)  # of a resource


def panel(
    name: str,
    strategies: tuple[str, ...],
    *,
    title: str = "VGG-16 on CIFAR-10, IID",
    accuracy: float | None = 0.7,
    scales: tuple[float, ...] = (),
) -> Panel:
    """A panel with one point, or with a point for each scale."""
    points = tuple(
        Point(scenario=f"{name}-{scale:g}", text="", value=scale, label=f"{scale:g}") for scale in scales
    )
    return Panel(
        name=name,
        title=title,
        points=points or (Point(scenario=name, text=""),),
        strategies=strategies,
        accuracy=accuracy,
        axis="compute of devices (TFLOPS)" if scales else None,
    )


def experiment(
    draws: Drawing, *panels: Panel, paper: tuple[str, ...] = PAPER, seeds: tuple[int, ...] = SEEDS
) -> Experiment:
    return Experiment(
        name="sample",
        figure="Fig. 5",
        title="made-up results",
        draws=draws,
        paper=paper,
        panels=panels,
        seeds=seeds,
        quick=False,
    )


def run(point: Point, strategy: str, seed: int) -> RunResult:
    """A run whose speed depends on strategy, place on the axis and seed."""
    scale = 1.0 if point.value is None else point.value**0.5
    speed = SPEEDS.get(strategy, 1.0) * scale * (1 + 0.06 * seed)
    ceiling = 0.74 if strategy in ("rbs+rms", "fl") else 0.8
    numbers = dict(part.split("=") for part in strategy.split("+") if "=" in part)
    batch, cut = float(numbers.get("b", 16)), float(numbers.get("cut", 4))
    if "b" in numbers and "cut" in numbers:
        speed = 0.4 * batch**0.4 / cut**0.2
    phases = {
        step: seconds * (batch / 16 if not step.startswith("sub") else cut / 4)
        for step, seconds in PHASES.items()
    }
    bits = {
        arrow: amount * (batch / cut / 4 if "submodel" not in arrow else cut)
        for arrow, amount in BITS.items()
    }
    return synthetic(
        point.scenario,
        strategy,
        seed,
        speed=speed,
        ceiling=ceiling,
        wobble=0.004,
        evaluations=120,
        every=5,
        round_seconds=10.0 + seed,
        batch=batch,
        cut=cut,
        text=f"place = {point.value or 0:g}",  # trainings at different places learn different things
        phases=phases,
        bits=bits,
    )


def runs_of(made: Experiment) -> list[RunResult]:
    """All trainings of an experiment."""
    return [run(*case) for case in made.cases()]


FOUR = tuple(
    panel(name, (*PAPER, *BESIDE), title=title, accuracy=None if name == "c" else 0.7)
    for name, title in {
        "a": "VGG-16 on CIFAR-10, IID",
        "b": "VGG-16 on CIFAR-10, two shards",
        "c": "ResNet-18 on CIFAR-100, IID",
        "d": "ResNet-18 on CIFAR-100, two shards",
    }.items()
)
SAMPLES: dict[str, Experiment] = {
    "batch-and-latency": experiment("batch-and-latency", panel("e", BATCHES), paper=BATCHES),
    "cut-and-overhead": experiment("cut-and-overhead", panel("f", CUTS), paper=CUTS),
    "curves": experiment("curves", *FOUR),
    "converged": experiment("converged", *FOUR),
    "time-against": experiment(
        "time-against",
        panel("g", PAPER, scales=SCALES),
        panel("h", (*PAPER, "fl"), scales=SCALES, title="Edge server"),
    ),
    "ablation": experiment(
        "ablation",
        panel("i", ("habs+cut=8", *BATCHES)),
        panel("j", ("habs+cut=8", *BATCHES), title="VGG-16 on CIFAR-10, two shards"),
        paper=("habs+cut=8", *BATCHES),
    ),
    "bars": experiment(
        "bars", panel("k", ("hasfl", *CUTS, *BATCHES)), panel("l", PAPER, title="Two shards"), paper=()
    ),
}
