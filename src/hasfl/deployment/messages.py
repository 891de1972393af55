"""The messages between parties: a class for every question and for every answer.

A party answers every question with one message. The class of a question says who asks whom: a question of the
fed server to a device is a `FedToDevice`, and a device refuses every other question of the fed server. The
class of the answer is in brackets: `Meet(FedToDevice[Met], …)`. `EXCHANGES` lists all questions as the table
in docs/deploy.md does; the first line of a question's docstring is its text in that table.
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

# ── what tensors in messages hold; all other fields are plain numbers and texts ──────────────────────────


MODEL = "averaged layers"  # private layers, averaged over devices
CLIENT = "the device's client part"
MIDDLE = "middle parts"  # layers of each device from its cut to the deepest cut
COMMON = "common layers"
ACTIVATIONS = "activations"
LABELS = "labels"
RETURNED = "gradients of activations"
NORMS = "statistics of batch norms"  # a mean and a variance for each channel
CLASSES = "counts of classes"
BYTES = "zeros"  # bytes that measure a link
MOST_PROBED = 16 * 2**20  # bytes in one measurement of a link; chosen by hand
MOST_SAMPLES = 1_000_000  # samples that one question may ask for; chosen by hand

AveragedLayers = Annotated[Tensors, MODEL]
CommonLayers = Annotated[Tensors, COMMON]
SamplesActivations = Annotated[Tensor, ACTIVATIONS]
MeasuredNorms = Annotated[dict[str, Moments], NORMS]  # by layer and batch norm, as in "conv1/1."
SomeSamples = Annotated[int, Between(1, MOST_SAMPLES)]
Cuts = Annotated[dict[Device, Count], NotEmpty]


class Question(TypedMessage, Generic[A]):
    """A message whose answer is of the class A."""

    __slots__ = ()


class FedToDevice(Question[A]):
    """A question of the fed server to a device."""

    __slots__ = ()


class FedToEdge(Question[A]):
    """A question of the fed server to the edge server."""

    __slots__ = ()


class EdgeToDevice(Question[A]):
    """A question of the edge server to a device."""

    __slots__ = ()


@fields_checked
class Done(TypedMessage):
    """The party has done what the question asked for."""

    kind = "done"


# ── the fed server asks both, before a training ──────────────────────────────────────────────────────────


@fields_checked
class Met(TypedMessage):
    """The FLOP/s of a party, and the free memory of a device."""

    kind = "met"
    flops: Number  # FLOP/s
    memory: Number | None = None  # bits; None from the edge server


@fields_checked
class Meet(FedToDevice[Met], FedToEdge[Met]):
    """What is trained: the scenario, and the number of samples of each device.

    The party builds the model and measures its FLOP/s on it.
    """

    kind = "meet"
    agreement: dict[str, object]  # `Agreement.as_fields`


@fields_checked
class Probed(TypedMessage):
    """The bytes that a probe asked for."""

    kind = "probed"
    bytes: Annotated[Tensor, BYTES]


@fields_checked
class Probe(FedToDevice[Probed], FedToEdge[Probed]):
    """How fast the link is.

    The party sends back as many bytes as the question asks for; both transfers are timed.
    """

    kind = "probe"
    count: Annotated[int, Between(0, MOST_PROBED)]  # bytes to send back
    bytes: Annotated[Tensor, BYTES]


FedAsksAnybody = Meet | Probe


# ── the fed server asks a device ─────────────────────────────────────────────────────────────────────────


@fields_checked
class FindEdge(FedToDevice[Done]):
    """Where the edge server is.

    The device connects to the edge server with this token.
    """

    kind = "find"
    edge: str | None = None  # host:port of the edge server
    edge_token: str | None = None


@fields_checked
class DeviceReady(TypedMessage):
    """The device has its client part; the answer brings its free memory."""

    kind = "ready"
    resources: object = None  # {"memory": bits}; a wrong value is ignored


@fields_checked
class BeginDevice(FedToDevice[DeviceReady]):
    """An interval begins; where the edge server is.

    The device gets its client part (step b3) and connects to the edge server.
    """

    kind = "begin"
    interval: Whole
    cut: Count
    layers: AveragedLayers  # the client part, with the optimiser's slots
    edge: str | None = None
    edge_token: str | None = None


@fields_checked
class ClientPart(TypedMessage):
    """The client part of a device, and its interval."""

    kind = "layers"
    interval: Whole
    layers: Annotated[Tensors, CLIENT]


@fields_checked
class GiveClientPart(FedToDevice[ClientPart]):
    """An interval ends: step b1.

    The device sends its client part to the fed server.
    """

    kind = "give"
    interval: Whole


@fields_checked
class TakeServedModel(FedToDevice[Done]):
    """A model to judge.

    The device gets its client part of the served model, and keeps the client part in training.
    """

    kind = "take"
    cut: Count
    layers: AveragedLayers  # the client part of the served model, without slots
    edge: str | None = None
    edge_token: str | None = None


FedAsksDevice = FindEdge | BeginDevice | GiveClientPart | TakeServedModel


# ── the fed server asks the edge server ──────────────────────────────────────────────────────────────────


@fields_checked
class HasDiverged(TypedMessage):
    """Training has diverged: activations, losses or layers are not finite numbers."""

    kind = "diverged"
    dropped: dict[Device, str]  # devices that left, with the reason of each


@fields_checked
class NobodyLeft(TypedMessage):
    """All devices have left the interval."""

    kind = "nobody"
    dropped: dict[Device, str]


Failed = HasDiverged | NobodyLeft


@fields_checked
class Admit(FedToEdge[Done]):
    """Which devices may connect.

    The edge server accepts exactly the devices with these tokens.
    """

    kind = "admit"
    tokens: dict[Device, str]


@fields_checked
class Compared(TypedMessage):
    """The unlikeness of the devices' labels; None if samples have no classes."""

    kind = "compared"
    unlikeness: NotNegative | None


@fields_checked
class CompareLabels(FedToEdge[Compared]):
    """How unlike the devices' labels are; the answer is one number."""

    kind = "compare"
    sizes: Annotated[dict[Device, Count], NotEmpty]  # number of training samples of each device


@fields_checked
class BeginEdge(FedToEdge[Done]):
    """An interval begins: who takes part, and with which cut.

    The edge server makes the middle parts, and takes the layers that it lacks (step b3).
    """

    kind = "begin"
    finished: Whole  # number of finished intervals
    depth: Count  # number of private layers
    cuts: Cuts
    averaged: Whole  # number of models in the running mean
    tokens: dict[Device, str]
    layers: AveragedLayers  # the layers from the lowest cut on that the edge server lacks
    mean: AveragedLayers  # the running mean of the layers that become common


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
    """One round: batch sizes; the answer has the loss and seconds.

    The edge server leads the devices through steps a1 to a5.
    """

    kind = "train"
    round: Count
    devices: tuple[Device, ...]
    batch_sizes: tuple[Count, ...]
    drawn: tuple[Whole, ...]  # number of samples that each device has drawn so far
    seconds: Seconds  # time limit for one answer of a device


@fields_checked
class MiddleParts(TypedMessage):
    """The middle part of each device: the layers from its cut to the deepest cut."""

    kind = "middle"
    middle: Annotated[dict[Device, Tensors], MIDDLE]


@fields_checked
class GiveMiddleParts(FedToEdge[MiddleParts]):
    """An interval ends: step b1.

    The edge server sends the middle parts of all devices to the fed server.
    """

    kind = "give"
    interval: Whole


@fields_checked
class LayersOfEdge(TypedMessage):
    """Common layers, and their running mean if the question asked for it."""

    kind = "layers"
    layers: CommonLayers
    mean: CommonLayers


@fields_checked
class ReleaseCommon(FedToEdge[LayersOfEdge]):
    """An interval begins with a deeper cut: the common layers that become private."""

    kind = "release"
    upto: Whole  # number of private layers
    finished: Whole  # number of finished intervals


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
    """The scores of a model, by device, and the statistics of batch norms that were measured for it."""

    kind = "judged"
    held_out: dict[Device, tuple[Number, Number, Number]]  # number of samples, sum of metric, sum of loss
    accuracy: Number | None = None  # accuracy on the test set; None without a test set
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
    """The number of training samples of each class; None if samples have no classes."""

    kind = "counted"
    classes: Annotated[Tensor | None, CLASSES] = None


@fields_checked
class CountClasses(EdgeToDevice[Counted]):
    """How many samples of each class it trains on."""

    kind = "count"


@fields_checked
class Activations(TypedMessage):
    """The activations of a batch after the client part, and its labels."""

    kind = "activations"
    seconds: Seconds  # duration of the forward pass
    differentiable: bool  # whether the device can use gradients
    activations: SamplesActivations
    labels: Annotated[Tensor, LABELS]


@fields_checked
class Forward(EdgeToDevice[Activations]):
    """Steps a1 and a2.

    The device draws a batch, passes it through its client part, and sends the activations and labels.
    """

    kind = "forward"
    interval: Whole
    round: Count
    start: Whole  # number of samples that the device has drawn so far
    count: SomeSamples  # batch size


@fields_checked
class BackwardDone(TypedMessage):
    """The device has done its backward pass."""

    kind = "gradients taken"
    seconds: Seconds  # duration of the backward pass
    # Squared norm of the gradient of the client part. None without clipping, or if it is not finite.
    square: NotNegative | None = None


@fields_checked
class Backward(EdgeToDevice[BackwardDone]):
    """Steps a4 and a5.

    The device gets the gradient of its activations and passes it back. Without clipping, it steps at once.
    """

    kind = "backward"
    interval: Whole
    round: Count
    gradient: Annotated[Tensor | None, RETURNED] = None


@fields_checked
class Step(EdgeToDevice[Done]):
    """The factor by which gradients are clipped.

    The device scales its gradients by this factor, and steps (docs/decisions/0008).
    """

    kind = "step"
    interval: Whole
    round: Count
    factor: Number


@fields_checked
class NoSamples(TypedMessage):
    """The device has no sample to measure batch norms with."""

    kind = "nothing"


@fields_checked
class NormSeen(TypedMessage):
    """The statistics of the first batch norm that is not known yet."""

    kind = "norm"
    norm: str  # layer and batch norm, as in "conv1/1."
    count: Count  # number of values for each channel
    mean: Annotated[Tensor, NORMS]
    variance: Annotated[Tensor, NORMS]


@fields_checked
class AfterClientPart(TypedMessage):
    """The activations after a client part whose batch norms are all known."""

    kind = "activations"
    activations: SamplesActivations


@fields_checked
class MeasureNorms(EdgeToDevice[NormSeen | AfterClientPart | NoSamples]):
    """Measure batch norms of the model.

    The device passes samples through its client part of the served model, up to the first batch norm that is
    not in `known` (docs/decisions/0010).
    """

    kind = "norms"
    known: MeasuredNorms


@fields_checked
class ToScore(TypedMessage):
    """Activations of held-out samples after the client part, and their labels."""

    kind = "activations"
    activations: SamplesActivations
    labels: Annotated[Tensor, LABELS]


@fields_checked
class Score(EdgeToDevice[ToScore]):
    """Held-out samples judge the model.

    The device passes held-out samples through its client part of the served model.
    """

    kind = "score"
    start: Whole  # index of the first held-out sample
    count: SomeSamples  # number of held-out samples
    known: MeasuredNorms


EdgeAsksDevice = CountClasses | Forward | Backward | Step | MeasureNorms | Score


# ── who asks whom ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Exchange:
    """A kind of question: who asks whom, and which tensors the question and its answer carry."""

    asker: str
    asked: str
    kind: str
    about: str  # first line of the question's docstring
    sent: frozenset[str]  # contents of the question's tensors, such as `LABELS`
    returned: frozenset[str]  # contents of the answer's tensors


def answers_to(question: Any) -> tuple[type[Any], ...]:
    """The classes of answers to a class of questions."""
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
    """Read a question of the union `questions` and answer it with `answer`; other questions are refused."""
    return written(answer(read_question(message, get_args(questions))))
