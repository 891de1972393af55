"""What parties say to each other: a type for every question and for every answer.

A party answers every question with one message. The class of a question says who asks whom: the fed server
can only ask devices what is a `FedToDevice`, and a party reads no question of another class. The class of the
answer is in brackets. `EXCHANGES` is the same as a table, which docs/deploy.md shows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin

from torch import Tensor

from hasfl.deployment.fields import (
    Between,
    Count,
    Device,
    Message,
    NotEmpty,
    NotNegative,
    Number,
    Party,
    Seconds,
    Tensors,
    TypedMessage,
    Whole,
    fields_checked,
    notes_of,
    read_question,
    written,
)
from hasfl.deployment.norms import Moments

A = TypeVar("A", bound=TypedMessage, covariant=True)

FED_SERVER, EDGE_SERVER, DEVICE = "fed server", "edge server", "device"

# ── what messages carry. All else in them are plain numbers and texts ────────────────────────────────────


MODEL = "averaged layers"  # the first layers of a model, averaged over devices
CLIENT = "the device's client part"
MIDDLE = "middle parts"  # of each device, from its cut to the deepest one
COMMON = "common layers"
ACTIVATIONS = "activations"
LABELS = "labels"
RETURNED = "gradients of activations"
NORMS = "statistics of batch norms"  # a mean and a variance for each channel
CLASSES = "counts of classes"
BYTES = "zeros"  # to measure a link
MOST_PROBED = 16 * 2**20  # bytes of them
MOST_SAMPLES = 1_000_000  # of one question

AveragedLayers = Annotated[Tensors, MODEL]
CommonLayers = Annotated[Tensors, COMMON]
SamplesActivations = Annotated[Tensor, ACTIVATIONS]
MeasuredNorms = Annotated[dict[str, Moments], NORMS]  # by layer and batch norm, as in "conv1/1."
SomeSamples = Annotated[int, Between(1, MOST_SAMPLES)]
Cuts = Annotated[dict[Device, Count], NotEmpty]


class Question(TypedMessage, Generic[A]):
    """A message that is answered with an A."""

    __slots__ = ()


class FedToDevice(Question[A]):
    """What the fed server may ask a device."""

    __slots__ = ()


class FedToEdge(Question[A]):
    """What the fed server may ask the edge server."""

    __slots__ = ()


class EdgeToDevice(Question[A]):
    """What the edge server may ask a device."""

    __slots__ = ()


@fields_checked
class Done(TypedMessage):
    """What was asked for is done."""

    kind = "done"


# ── the fed server asks both, before a training ──────────────────────────────────────────────────────────


@fields_checked
class Met(TypedMessage):
    """How fast a party is; a device also says how much memory is free."""

    kind = "met"
    flops: Number
    memory: Number | None = None  # bit


@fields_checked
class Meet(FedToDevice[Met], FedToEdge[Met]):
    """What is trained: the scenario, and the number of samples of each device."""

    kind = "meet"
    agreement: dict[str, object]


@fields_checked
class Probed(TypedMessage):
    """As many bytes as were asked for."""

    kind = "probed"
    bytes: Annotated[Tensor, BYTES]


@fields_checked
class Probe(FedToDevice[Probed], FedToEdge[Probed]):
    """How fast the link is."""

    kind = "probe"
    count: Annotated[int, Between(0, MOST_PROBED)]  # bytes to send back
    bytes: Annotated[Tensor, BYTES]


FedAsksAnybody = Meet | Probe


# ── the fed server asks a device ─────────────────────────────────────────────────────────────────────────


@fields_checked
class FindEdge(FedToDevice[Done]):
    """Where the edge server is."""

    kind = "find"
    edge: str | None = None  # host:port
    edge_token: str | None = None


@fields_checked
class DeviceReady(TypedMessage):
    """The device has its client part; what it measured of itself."""

    kind = "ready"
    resources: object = None  # a wrong value does not count, and does no harm


@fields_checked
class BeginDevice(FedToDevice[DeviceReady]):
    """An interval begins; where the edge server is."""

    kind = "begin"
    interval: Whole
    cut: Count
    layers: AveragedLayers  # with the optimiser's slots
    edge: str | None = None
    edge_token: str | None = None


@fields_checked
class ClientPart(TypedMessage):
    """The layers of a device, and the interval that they are of."""

    kind = "layers"
    interval: Whole
    layers: Annotated[Tensors, CLIENT]


@fields_checked
class GiveClientPart(FedToDevice[ClientPart]):
    """An interval ends: step b1."""

    kind = "give"
    interval: Whole


@fields_checked
class TakeServedModel(FedToDevice[Done]):
    """A model to judge."""

    kind = "take"
    cut: Count
    layers: AveragedLayers  # without slots
    edge: str | None = None
    edge_token: str | None = None


FedAsksDevice = FindEdge | BeginDevice | GiveClientPart | TakeServedModel


# ── the fed server asks the edge server ──────────────────────────────────────────────────────────────────


@fields_checked
class HasDiverged(TypedMessage):
    """The numbers of all parties are not finite."""

    kind = "diverged"
    dropped: dict[Device, str]  # the reasons, by device


@fields_checked
class NobodyLeft(TypedMessage):
    """All devices have left the interval."""

    kind = "nobody"
    dropped: dict[Device, str]


Failed = HasDiverged | NobodyLeft


@fields_checked
class Admit(FedToEdge[Done]):
    """Which devices may connect."""

    kind = "admit"
    tokens: dict[Device, str]


@fields_checked
class Compared(TypedMessage):
    """How unlike the labels of devices are; None where samples have no classes."""

    kind = "compared"
    unlikeness: NotNegative | None


@fields_checked
class CompareLabels(FedToEdge[Compared]):
    """How unlike the devices' labels are; the answer is one number."""

    kind = "compare"
    sizes: Annotated[dict[Device, Count], NotEmpty]  # how many samples each device trains on


@fields_checked
class BeginEdge(FedToEdge[Done]):
    """An interval begins: who takes part, and with which cut."""

    kind = "begin"
    finished: Whole  # intervals
    depth: Count  # number of private layers
    cuts: Cuts
    averaged: Whole  # models in the running mean
    tokens: dict[Device, str]
    layers: AveragedLayers  # from the lowest cut on, that only the fed server holds
    mean: AveragedLayers  # of layers that become common: their running mean


@fields_checked
class Trained(TypedMessage):
    """The mean loss of a round, the seconds of each step by party, and who was dropped."""

    kind = "trained"
    loss: Number
    devices: tuple[Device, ...]
    phases: dict[str, dict[Party, Seconds]]
    dropped: dict[Device, str]


@fields_checked
class Train(FedToEdge[Trained | Failed]):
    """One round: batch sizes; the answer has the loss and seconds."""

    kind = "train"
    round: Count
    devices: tuple[Device, ...]
    batch_sizes: tuple[Count, ...]
    drawn: tuple[Whole, ...]  # samples so far, by device
    seconds: Seconds  # that devices have for one answer


@fields_checked
class MiddleParts(TypedMessage):
    """The layers between each device's cut and the deepest one."""

    kind = "middle"
    middle: Annotated[dict[Device, Tensors], MIDDLE]


@fields_checked
class GiveMiddleParts(FedToEdge[MiddleParts]):
    """An interval ends: step b1."""

    kind = "give"
    interval: Whole


@fields_checked
class LayersOfEdge(TypedMessage):
    """Common layers, and their running mean where it was asked for."""

    kind = "layers"
    layers: CommonLayers
    mean: CommonLayers


@fields_checked
class ReleaseCommon(FedToEdge[LayersOfEdge]):
    """An interval begins with a deeper cut: the common layers that become private."""

    kind = "release"
    upto: Whole  # number of private layers
    finished: Whole  # intervals


@fields_checked
class HandOut(FedToEdge[LayersOfEdge]):
    """A model is handed out: of the last evaluation, or the best one."""

    kind = "hand out"
    best: bool


@fields_checked
class Finish(FedToEdge[Done | HasDiverged]):
    """An interval is over: keep the common layers on disk."""

    kind = "finish"
    interval: Whole


@fields_checked
class Judged(TypedMessage):
    """How good a model is, by device, and the batch norms that were measured for it."""

    kind = "judged"
    held_out: dict[Device, tuple[Number, Number, Number]]  # samples, sums of their metric and of their loss
    accuracy: Number | None = None  # on the test set, where there is one
    test_loss: Number | None = None
    known: MeasuredNorms
    dropped: dict[Device, str]


@fields_checked
class Evaluate(FedToEdge[Judged | Failed]):
    """Judge a model; the answer has sums over samples."""

    kind = "evaluate"
    depth: Whole  # number of private layers
    cuts: Cuts
    held_out: bool  # whether held-out samples are scored
    layers: AveragedLayers


@fields_checked
class KeepBest(FedToEdge[Done]):
    """The model of the last evaluation is the best so far."""

    kind = "keep"


FedAsksEdge = (
    Admit
    | CompareLabels
    | BeginEdge
    | Train
    | GiveMiddleParts
    | ReleaseCommon
    | HandOut
    | Finish
    | Evaluate
    | KeepBest
)


# ── the edge server asks a device ────────────────────────────────────────────────────────────────────────


@fields_checked
class Counted(TypedMessage):
    """Samples of each class; None where samples have no classes."""

    kind = "counted"
    classes: Annotated[Tensor | None, CLASSES] = None


@fields_checked
class CountClasses(EdgeToDevice[Counted]):
    """How many samples of each class it trains on."""

    kind = "count"


@fields_checked
class Activations(TypedMessage):
    """What a batch is after the client part, and its labels."""

    kind = "activations"
    seconds: Seconds  # of the forward pass
    differentiable: bool  # whether the device can use gradients
    activations: SamplesActivations
    labels: Annotated[Tensor, LABELS]


@fields_checked
class Forward(EdgeToDevice[Activations]):
    """Steps a1 and a2."""

    kind = "forward"
    interval: Whole
    round: Count
    start: Whole  # samples that the device has drawn so far
    count: SomeSamples  # in the batch


@fields_checked
class BackwardDone(TypedMessage):
    """The backward pass is done."""

    kind = "gradients taken"
    seconds: Seconds
    square: NotNegative | None = None  # of the norm of the gradient, with clipping; None if it is not finite


@fields_checked
class Backward(EdgeToDevice[BackwardDone]):
    """Steps a4 and a5."""

    kind = "backward"
    interval: Whole
    round: Count
    gradient: Annotated[Tensor | None, RETURNED] = None


@fields_checked
class Step(EdgeToDevice[Done]):
    """The factor by which gradients are clipped."""

    kind = "step"
    interval: Whole
    round: Count
    factor: Number


@fields_checked
class NoSamples(TypedMessage):
    """The device has no samples for this."""

    kind = "nothing"


@fields_checked
class NormSeen(TypedMessage):
    """What the first batch norm saw that has not been measured yet."""

    kind = "norm"
    norm: str
    count: Count  # values for each channel
    mean: Annotated[Tensor, NORMS]
    variance: Annotated[Tensor, NORMS]


@fields_checked
class AfterClientPart(TypedMessage):
    """Activations after the client part, all of whose batch norms have been measured."""

    kind = "activations"
    activations: SamplesActivations


@fields_checked
class MeasureNorms(EdgeToDevice[NormSeen | AfterClientPart | NoSamples]):
    """Measure batch norms of the model."""

    kind = "norms"
    known: MeasuredNorms


@fields_checked
class ToScore(TypedMessage):
    """Activations and labels of held-out samples."""

    kind = "activations"
    activations: SamplesActivations
    labels: Annotated[Tensor, LABELS]


@fields_checked
class Score(EdgeToDevice[ToScore]):
    """Held-out samples judge the model."""

    kind = "score"
    start: Whole
    count: SomeSamples
    known: MeasuredNorms


EdgeAsksDevice = CountClasses | Forward | Backward | Step | MeasureNorms | Score


# ── who asks whom ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Exchange:
    """A kind of question: who asks whom, and which tensors the question and its answer carry."""

    asker: str
    asked: str
    kind: str
    about: str
    sent: frozenset[str]
    returned: frozenset[str]


def answers_to(question: Any) -> tuple[type[Any], ...]:
    """The classes of answers to a question."""
    (base, *_) = question.__orig_bases__
    (answer,) = get_args(base)
    return get_args(answer) if get_origin(answer) else (answer,)


def _exchanges(asker: str, asked: str, questions: Any) -> list[Exchange]:
    return [
        Exchange(
            asker,
            asked,
            question.kind,
            question.__doc__.splitlines()[0].removesuffix("."),
            frozenset(notes_of(question)),
            frozenset().union(*(notes_of(answer) for answer in answers_to(question))),
        )
        for question in get_args(questions)
    ]


EXCHANGES = (
    *_exchanges(FED_SERVER, DEVICE, FedAsksAnybody | FedAsksDevice),
    *_exchanges(FED_SERVER, EDGE_SERVER, FedAsksAnybody | FedAsksEdge),
    *_exchanges(EDGE_SERVER, DEVICE, EdgeAsksDevice),
)


def exchange(asker: str, asked: str, kind: str) -> Exchange | None:
    """The kind of question with which one party asks another; None if there is no such question."""
    return next((e for e in EXCHANGES if (e.asker, e.asked, e.kind) == (asker, asked, kind)), None)


def answered(message: Message, questions: Any, answer: Callable[[Any], TypedMessage]) -> Message:
    """The answer to one of these questions, which are a union of classes; all others are refused."""
    return written(answer(read_question(message, get_args(questions))))
