"""The settings of a training: the names, the defaults and the checks of all settings.

The library takes `Settings`, in which rare settings are grouped. A scenario file lists the same names under
`[training]` (`runs/scenario.py`).
"""

import re
import types
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from hasfl.arrays import count, quantity, share
from hasfl.constants import BoundConstants, Constants, MeasuredConstants
from hasfl.errors import InputError
from hasfl.goal import HELD_OUT, UNTIL_CONVERGED, Goal
from hasfl.problem import MAX_BATCH
from hasfl.profile import SLOTS_PER_WEIGHT
from hasfl.schedule import RateSchedule

PROCESSOR = re.compile(r"cpu|cuda(:[0-9]+)?")  # names of this machine's processors; cuda:1 is the second GPU
STEP_FACTOR = 0.1  # the default of torch's StepLR
MOST_HELD_OUT = 0.5  # largest share of held-out samples; chosen by hand, so that most samples train


def _require_choices(group: object, kind: type) -> None:
    """Raise InputError if a setting has a value that the Literal of its type does not list."""
    for name, hint in get_type_hints(kind).items():
        choices = _choices(hint)
        if choices and getattr(group, name) not in choices:
            known = ", ".join(choice for choice in choices if choice is not None)
            raise InputError(f"{name} must be one of {known}, got {getattr(group, name)!r}")


def _choices(hint: Any) -> list[Any]:
    """The values that a type with a Literal allows, with None if it is optional; empty for other types."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        literal = [choice for part in get_args(hint) for choice in _choices(part)]
        return [*literal, None] if literal else []
    return []


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings that most trainings choose. The defaults are the paper's."""

    strategy: Any = "hasfl"  # a name, a function of a situation, or an object with a method plan
    learning_rate: float = 5e-4  # γ
    interval: int = 15  # I, rounds between two aggregations
    optimizer: Any = "sgd"  # a name, or an object with a method step (learning/optimizers.py)
    participation: float = 1.0  # share of the present devices that takes part in an interval
    loss: Any = None  # (outputs, labels) → a loss for each sample; None: chosen by the kind of labels
    metric: Any = None  # (outputs, labels) → a score from 0 to 1 for each sample; None: 1 for a right answer
    aggregation: Any = "mean"  # "mean", or (replicas, samples, before) → weight (learning/aggregation.py)
    local_term: Any = None  # (weight, anchor) → a term of each device's loss (learning/local_term.py)
    max_batch: int = MAX_BATCH  # the largest batch size that a plan may have
    evaluate_every: int | None = None  # rounds between two evaluations; None: the interval

    def __post_init__(self) -> None:
        quantity("learning_rate", self.learning_rate, positive=True)
        count("interval", self.interval)
        count("max_batch", self.max_batch)
        if self.evaluate_every is not None:
            count("evaluate_every", self.evaluate_every)
        share("participation", self.participation)
        name = self.optimizer
        if isinstance(name, str) and ":" not in name and name not in SLOTS_PER_WEIGHT:
            known = ", ".join(SLOTS_PER_WEIGHT)
            raise InputError(
                f"optimizer must be one of {known}, or one of your own as package.module:callable, got "
                f"{name!r}"
            )
        _require_choices(self, Recipe)


@dataclass(frozen=True, kw_only=True)
class Descent:
    """How the learning rate changes, and how gradients change before the optimiser's step."""

    schedule: Literal["constant", "step", "cosine"] = "constant"  # how the rate changes after the warm-up
    warm_up: int = 0  # rounds in which the learning rate rises linearly to its full value
    schedule_rounds: int | None = None  # length of a cosine, with its warm-up; None: the rounds of the goal
    step_every: int | None = None  # rounds after which a step schedule lowers the learning rate
    step_factor: float = STEP_FACTOR  # factor by which a step schedule multiplies the learning rate
    weight_decay: float = 0.0  # as in torch.optim: decoupled for adamw, else added to the gradient
    clip: float | None = None  # the largest norm of a gradient; None: gradients are not clipped

    def __post_init__(self) -> None:
        quantity("weight_decay", self.weight_decay)
        if self.clip is not None:
            quantity("clip", self.clip, positive=True)
        if self.warm_up != 0 or isinstance(self.warm_up, bool):
            count("warm_up", self.warm_up)
        _require_choices(self, Descent)
        self._check_cosine()
        self._check_steps()

    def _check_cosine(self) -> None:
        if self.schedule_rounds is None:
            return
        count("schedule_rounds", self.schedule_rounds)
        if self.schedule != "cosine":
            raise InputError(
                'schedule_rounds is the length of a cosine: leave it out, or set schedule = "cosine"'
            )
        _require_longer_than_its_warm_up(self.schedule_rounds, self.warm_up)

    def _check_steps(self) -> None:
        """Raise InputError for a step schedule without `step_every`, or for its settings without it."""
        share("step_factor", self.step_factor)
        if self.schedule == "step":
            if self.step_every is None:
                raise InputError(
                    'step_every is missing: schedule = "step" lowers the rate after so many rounds'
                )
            count("step_every", self.step_every)
            return
        for name in ("step_every", "step_factor"):
            if getattr(self, name) != getattr(Descent, name):
                raise InputError(f'{name} belongs to a step schedule: leave it out, or set schedule = "step"')

    def rates(self, learning_rate: float, rounds: int | None) -> RateSchedule:
        """The learning rate of every round of a training whose goal allows `rounds` rounds."""
        length = self.schedule_rounds or rounds
        if self.schedule == "cosine":
            if length is None:
                raise InputError(
                    "a cosine schedule needs a length: give schedule_rounds, or end training after a number "
                    "of rounds"
                )
            _require_longer_than_its_warm_up(length, self.warm_up)
        return RateSchedule(
            learning_rate, self.schedule, self.warm_up, length or 1, self.step_every or 1, self.step_factor
        )


def _require_longer_than_its_warm_up(rounds: int, warm_up: int) -> None:
    if warm_up >= rounds:
        raise InputError(
            f"warm_up must be shorter than the cosine of {rounds} rounds that it belongs to, got {warm_up}: "
            "shorten it, or give more schedule_rounds"
        )


@dataclass(frozen=True, kw_only=True)
class Planning:
    """Which constants plans rest on, and whether plans may change during training."""

    constants: Literal["measured", "paper"] | None = None  # kind of constants; None: see `Settings.kind_for`
    # ε, the mean squared gradient to reach, with the paper's constants; None: a target that every plan
    # reaches, `theory.objective.target_for_all`.
    target: float | None = None
    plans: Literal["over time", "stay"] = "over time"  # stay: no new plan once the constants are final

    def __post_init__(self) -> None:
        if self.target is not None:
            quantity("target", self.target, positive=True)
        _require_choices(self, Planning)


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Which model is evaluated, and which model is handed out."""

    serve: Literal["mean", "last"] = "mean"  # a running mean of the aggregated models, or the last model
    calibrate: bool | None = None  # measure batch norms of the served model; None: if the mean is served
    keep: Literal["final", "best"] = "final"  # which served model is handed out
    score_last: bool = False  # test the last model too, beside the served mean, for reports

    def __post_init__(self) -> None:
        if self.calibrate not in (None, True, False):
            raise InputError(f"calibrate must be true or false, got {self.calibrate!r}")
        if self.score_last not in (True, False):
            raise InputError(f"score_last must be true or false, got {self.score_last!r}")
        _require_choices(self, Serving)
        if self.score_last and not self.averages:
            raise InputError(f"score_last has no effect with serve = {self.serve!r}: leave it out")

    @property
    def keeps_best(self) -> bool:
        """Whether the best evaluation on held-out samples chooses the model that is handed out."""
        return self.keep == "best"

    @property
    def averages(self) -> bool:
        """Whether a running mean is kept."""
        return self.serve == "mean"

    @property
    def calibrates(self) -> bool:
        """Whether the batch norms of every served model are measured again."""
        return self.averages if self.calibrate is None else self.calibrate


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How this machine computes and sends. Results are the same except for rounding."""

    engine: Literal["simulated", "reference"] = "simulated"  # reference: one device after the other, slow
    device: str = "cpu"  # the processor that computes: "cpu", "cuda", or "cuda:1" for the second GPU
    precision: Literal["float32", "bfloat16"] = "float32"  # type of products; float32 on a GPU means TF32
    report_every: int | None = None  # rounds whose losses are read at once; None: 1, or the interval on a GPU
    wire: Literal["float32", "float16"] = "float32"  # type of the numbers that real machines send in a round

    def __post_init__(self) -> None:
        if self.report_every is not None:
            count("report_every", self.report_every)
        if not (isinstance(self.device, str) and PROCESSOR.fullmatch(self.device)):
            raise InputError(
                f"device must be cpu, cuda, or a GPU by its number as cuda:1, got {self.device!r}"
            )
        _require_choices(self, Machine)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU computes."""
        return self.device != "cpu"


@dataclass(frozen=True, kw_only=True)
class Settings(Recipe):
    """Every setting of a training."""

    goal: Goal = UNTIL_CONVERGED
    seed: int = 0
    held_out: float | None = None  # share of held-out samples; None: 0.1 if they decide something, else 0
    augment: bool = False  # whether images are cropped and flipped at random
    known_constants: Constants | None = None  # None: constants are guessed, or estimated in training
    rounds_known: bool = True  # whether `known_constants` has the R∞ of this training's goal
    descent: Descent = Descent()
    planning: Planning = Planning()
    serving: Serving = Serving()
    machine: Machine = Machine()

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        self._check_kinds()
        self._check_held_out()
        self._check_constants()
        self._check_evaluations()
        _ = self.rates  # refuses a cosine without a length

    @property
    def rates(self) -> RateSchedule:
        """The learning rate of every round."""
        return self.descent.rates(self.learning_rate, self.goal.rounds)

    @property
    def held_out_share(self) -> float:
        """The share of each device's samples that are held out from training."""
        if self.held_out is not None:
            return self.held_out
        return HELD_OUT if self.needs_held_out else 0.0

    @property
    def needs_held_out(self) -> bool:
        """Whether held-out samples decide when training ends, or which model is handed out."""
        return self.goal.judges_model or self.serving.keeps_best

    @property
    def kind_of_constants(self) -> str:
        """The kind of constants that plans are made with: "measured" or "paper"."""
        if self.known_constants is not None:
            return self.known_constants.kind
        return self.planning.constants or ("measured" if self.planning.target is None else "paper")

    def kind_for(self, *, of_the_paper: bool) -> str:
        """The kind of constants for a strategy: "paper" for the paper's own, unless another kind is given."""
        given = self.known_constants is not None or self.planning.constants is not None
        return "paper" if of_the_paper and not given else self.kind_of_constants

    def _check_kinds(self) -> None:
        kinds = {
            "goal": Goal,
            "descent": Descent,
            "planning": Planning,
            "serving": Serving,
            "machine": Machine,
            "augment": bool,
            "rounds_known": bool,
        }
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"{name} must be a {kind.__name__}, got {getattr(self, name)!r}")
        if not isinstance(self.known_constants, BoundConstants | MeasuredConstants | None):
            raise InputError(f"known_constants must be constants, got {type(self.known_constants).__name__}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int | np.integer) or self.seed < 0:
            raise InputError(f"seed must be a whole number of at least 0, got {self.seed!r}")

    def _check_evaluations(self) -> None:
        """Raise InputError if convergence would be judged on several evaluations of the same model."""
        often = self.evaluate_every is not None and self.evaluate_every < self.interval
        if self.goal.converged and self.serving.averages and often:
            raise InputError(
                f"evaluate_every must be at least the interval, {self.interval}, where convergence ends "
                "training, because the served mean changes only at aggregations; got "
                f"{self.evaluate_every}"
            )

    def _check_held_out(self) -> None:
        share = self.held_out_share
        if not isinstance(share, int | float | np.floating) or not 0 <= share <= MOST_HELD_OUT:
            raise InputError(f"held_out must be from 0 to {MOST_HELD_OUT}, got {self.held_out!r}")
        if self.goal.judges_model and self.held_out_share == 0:
            raise InputError(
                "held_out must be above 0 where accuracy, loss or convergence ends training, got 0: leave it "
                "out, or end training after a number of rounds, samples or seconds"
            )
        if self.serving.keeps_best and self.held_out_share == 0:
            raise InputError(
                "held_out must be above 0 where the best model is kept, because held-out samples say which "
                'one is best, got 0: leave it out, or set keep = "final"'
            )

    def _check_constants(self) -> None:
        """Raise InputError for constants of one kind with settings for the other kind."""
        asked, known = self.planning.constants, self.known_constants
        if known is not None and asked not in (None, known.kind):
            raise InputError(
                f'constants = "{asked}" is not the kind that [constants] holds: leave it out, or set it to '
                f'"{known.kind}"'
            )
        if self.kind_of_constants == "measured" and self.planning.target is not None:
            way_out = (
                'set constants = "paper"' if known is None else "give the bound's constants in [constants]"
            )
            raise InputError(f"the target ε belongs to the paper's constants: leave it out, or {way_out}")
