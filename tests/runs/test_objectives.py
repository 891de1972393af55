"""Losses and metrics of a user's own, and labels that are not one class a sample."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hasfl import Dataset, FleetRanges, Goal, InputError, Machine, Seeds, Serving, draw_fleet, simulate
from hasfl.data.scoring import cross_entropy, right_answers, squared_error

FLEET = draw_fleet(FleetRanges(devices=3), Seeds(0))
QUICK: dict[str, Any] = {"strategy": "b=8+cut=1", "learning_rate": 0.2, "interval": 2, "rounds": 6}
WORDS, LENGTH = 7, 5


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def numbers() -> Tensor:
    return torch.randn(120, 6, generator=torch.Generator().manual_seed(0))


def data_with(labels: Tensor, x: Tensor | None = None) -> Dataset:
    x = numbers() if x is None else x
    return Dataset.of_arrays("mine", x[:90], labels[:90], x[90:], labels[90:])


def classes() -> Dataset:
    return data_with((numbers()[:, 0] > 0).long())


def words() -> Dataset:
    """Each token is to be answered by the one before it; some do not count, the first one never."""
    x = torch.randint(0, WORDS, (120, LENGTH), generator=torch.Generator().manual_seed(0))
    y = torch.cat([torch.full((120, 1), -100), x[:, :-1]], dim=1)
    y[::3, 2] = -100
    return data_with(y, x)


def regression(k: int | None = None) -> Dataset:
    x = numbers()
    return data_with(x[:, 0] * 2 if k is None else x[:, :k] * 2)


def classifier(outputs: int = 2) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, outputs)))


class Tagger(nn.Module):
    """Gives every token a class, from the tokens up to it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.context = nn.Conv1d(8, 16, 2, padding=1)
        self.head = nn.Linear(16, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.context(self.words(x).transpose(1, 2))[..., :-1]
        answers: Tensor = self.head(torch.relu(seen).transpose(1, 2))
        return answers


def near(outputs: Tensor, labels: Tensor) -> Tensor:
    """1 for an exact answer, and less for every answer that is further away."""
    return torch.exp(-(outputs.reshape(labels.shape) - labels).abs()).reshape(len(labels), -1).mean(1)


def outputs_of(training: Any, module: nn.Module, data: Dataset) -> Tensor:
    training.load_into(module)
    with torch.no_grad():
        result: Tensor = module.eval()(data.x_test)
    return result


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Dataset], dict[str, Any]]] = {
    "tokens": (lambda: seeded(Tagger), words, {}),
    "one number": (lambda: classifier(1), regression, {"metric": near}),
    "two numbers": (classifier, lambda: regression(2), {"metric": near}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_labels_are_trained_alike_by_both_engines(kind: str) -> None:
    make, load, settings = KINDS[kind]
    data = load()
    runs = []
    for engine in ("simulated", "reference"):
        training = simulate(
            make(), data, FLEET, **QUICK, **settings, held_out=0.1, machine=Machine(engine=engine)
        )
        runs.append(list(training))
        plain = outputs_of(training, make(), data)  # the module that was trained, in plain torch
        loss = (squared_error if "number" in kind else cross_entropy)(plain, data.y_test).mean()
        score = settings.get("metric", right_answers)(plain, data.y_test).mean()
        assert runs[-1][-1].test_loss == pytest.approx(float(loss), rel=1e-5)
        assert runs[-1][-1].accuracy == pytest.approx(float(score), rel=1e-5)
    losses = [[record.loss for record in records] for records in runs]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_tokens_can_be_learnt() -> None:
    records = list(simulate(seeded(Tagger), words(), FLEET, **QUICK | {"rounds": 80, "learning_rate": 1.0}))
    assert records[-1].accuracy is not None
    assert records[-1].accuracy > 0.9


def smoothed(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels, reduction="none", label_smoothing=0.1)


def test_an_own_loss_and_metric_are_those_that_are_reported() -> None:
    data, mine = classes(), classifier(3)

    def top_two(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs.topk(2, dim=1).indices == labels[:, None]).any(dim=1)  # booleans are scores too

    training = simulate(mine, data, FLEET, **QUICK, loss=smoothed, metric=top_two)
    *_, last = training
    plain = outputs_of(training, mine, data)
    assert last.accuracy == pytest.approx(float(top_two(plain, data.y_test).float().mean()))
    assert last.test_loss == pytest.approx(float(smoothed(plain, data.y_test).mean()), rel=1e-5)


def test_an_own_loss_equal_to_the_usual_one_changes_nothing() -> None:
    usual = simulate(classifier(), classes(), FLEET, **QUICK)
    own = simulate(classifier(), classes(), FLEET, **QUICK, loss=nn.CrossEntropyLoss(reduction="none"))
    assert [record.loss for record in usual] == [record.loss for record in own]


class Smoothed(nn.Module):
    """A loss as people write it in torch."""

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return smoothed(outputs, labels)


class Sharpened:
    """A loss that must be told how sharp it is."""

    def __init__(self, power: float) -> None:
        self.power = power


def test_a_class_stands_for_what_it_makes() -> None:
    """For a loss and for a metric; the class takes no arguments."""
    function = simulate(classifier(), classes(), FLEET, **QUICK, loss=smoothed, metric=right_answers)
    made = simulate(
        classifier(), classes(), FLEET, **QUICK, loss=Smoothed, metric=type("", (), {"__call__": _right})
    )
    assert [(each.loss, each.accuracy) for each in made] == [(each.loss, each.accuracy) for each in function]


def _right(self: object, outputs: Tensor, labels: Tensor) -> Tensor:
    return right_answers(outputs, labels)


@pytest.mark.parametrize(
    ("loss", "fault"),
    [
        (nn.CrossEntropyLoss, r"got shape \(\): do not average over samples \(in torch, reduction='none'\)"),
        ("torch.nn:CrossEntropyLoss", r"got shape \(\): do not average over samples"),
        (Sharpened, "calling loss 'Sharpened' failed: TypeError: .*'power'"),
        (type("Empty", (), {}), "loss must be a function of outputs and labels, .* of type Empty"),
        ("focal", "loss must be a function of outputs and labels, .* got 'focal' of type str"),
        (nn.CrossEntropyLoss(), r"of shape \(3,\) for 3 samples, got shape \(\): do not average"),
        (lambda o, y: F.mse_loss(o, F.one_hot(y).float(), reduction="none"), r"got shape \(3, 2\)"),
        (lambda o, y: 1.0, "one number for each sample.* got float"),
        (lambda o, y: smoothed(o, y).detach(), "must be differentiable"),
        (lambda o, y: (o.argmax(1) != y).float(), "must be differentiable"),
        (lambda o, y: torch.ones(len(y), requires_grad=True), "no gradient with respect to the outputs"),
        (lambda o, y: smoothed(o, y) * float("nan"), "must be finite, got nan"),
        (lambda o, y: (smoothed(o, y) * 0).sqrt(), "the loss and its gradient must be finite"),
        (lambda o, y: smoothed(o, y).double(), "type of the outputs, torch.float32, got torch.float64"),
        (lambda o, y: smoothed(o, y).mean().expand(len(y)), "by itself.* do not mix samples"),
        (lambda o, y: smoothed(o, y) / o.std(dim=0).mean(), "score each sample by itself"),
        (lambda o, y: o[:, 5], r"the loss fails on outputs of \(3, 2\) and labels of \(3,\): IndexError: "),
        (lambda o: o, "the loss fails on .*TypeError"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:std.*:UserWarning")
def test_a_loss_that_cannot_train_is_refused(loss: Any, fault: str) -> None:
    with pytest.raises(InputError, match=fault) as refused:
        simulate(classifier(), classes(), FLEET, **QUICK, loss=loss)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("metric", "fault"),
    [
        (3, "metric must be a function of outputs and labels, .* got 3 of type int"),
        (
            lambda o, y: (o.argmax(1) == y).float().mean(),
            r"the metric must return a tensor .* got shape \(\)",
        ),
        (lambda o, y: 100 * right_answers(o, y) + 1, "a score from 0 to 1, got "),
        (lambda o, y: -1 - right_answers(o, y), "a score from 0 to 1, got -"),
        (lambda o, y: right_answers(o, y) * float("nan"), "a score from 0 to 1, got nan"),
        (lambda o, y: right_answers(o, y) / len(y), "score each sample by itself"),
        (lambda o, y: 100 * right_answers(o, y), "from 0 to 1, got .*100"),  # also where the model errs
        (lambda o, y: 1 / 0, "the metric fails on .*: ZeroDivisionError: division by zero"),
    ],
)
def test_a_metric_that_cannot_score_is_refused(metric: Any, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        simulate(classifier(), classes(), FLEET, **QUICK, metric=metric)


def test_a_metric_is_tried_on_right_outputs_of_every_kind() -> None:
    """The model answers nothing right before it is trained, so a score in percent shows only there."""
    channels_first = nn.Sequential(seeded(Tagger), nn.Identity(), Transposed())
    cases = (
        (seeded(Tagger), words(), right_answers),
        (channels_first, words(), right_answers),
        (classifier(1), regression(), near),
        (classifier(2), regression(2), near),
    )
    for model, data, score in cases:
        simulate(model, data, FLEET, **QUICK, metric=score)

        def percent(outputs: Tensor, labels: Tensor, score: Any = score) -> Tensor:
            values: Tensor = score(outputs, labels)
            return torch.where(values > 1 - 1e-6, 100.0, 0.0)

        with pytest.raises(InputError, match="from 0 to 1, got 100, 100, 100 for right outputs"):
            simulate(model, data, FLEET, **QUICK, metric=percent)


class Transposed(nn.Module):
    """Puts the axis of classes second."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


@pytest.mark.parametrize(
    "loss", [nn.L1Loss(reduction="none"), nn.MSELoss(reduction="none"), lambda o, y: (o - y).abs().mean(1)]
)
@pytest.mark.filterwarnings("error")
def test_a_loss_of_outputs_against_all_labels_is_told(loss: Any) -> None:
    """Torch would make a table of 3 x 3 from outputs of shape (3, 1) and labels of shape (3,), and warn."""
    shapes = r"outputs have shape \(3, 1\) and labels \(3,\); begin with outputs = outputs.reshape"
    with pytest.raises(InputError, match=shapes):
        simulate(classifier(1), regression(), FLEET, **QUICK, loss=loss, metric=near)


def test_a_metric_that_goes_wrong_later_is_refused_then() -> None:
    """The first samples are scored well, and all together not."""
    data = classes()

    def metric(outputs: Tensor, labels: Tensor) -> Tensor:
        return torch.full((len(labels),), 2.0 if len(labels) > 3 else 0.5)

    with pytest.raises(InputError, match="mean in an evaluation is 2"):
        list(simulate(classifier(), data, FLEET, **QUICK, metric=metric))


@pytest.mark.parametrize(
    ("model", "data", "settings", "fault"),
    [
        (classifier(1), classes(), {}, "each of the 2 classes of mine, but its last layer gives one number"),
        (classifier(1), classes(), {"metric": right_answers}, "each of the 2 classes"),
        (classifier(1), classes(), {"loss": lambda o, y: o[:, 0]}, "each of the 2 classes"),  # for the metric
        (seeded(Tagger), data_with(torch.zeros(120).long(), words().x_train.repeat(2, 1)[:120]), {},
         "each of the 1 classes of mine, but its last layer gives 5x7"),
        (classifier(), data_with(torch.zeros(120, 3).long()), {}, "of mine for each of 3 tokens, but"),
        (classifier(), data_with(torch.eye(2).long().repeat(60, 1)), {},
         r"those of mine are one-hot rows of shape \(90, 2\): .* y.argmax\(axis=1\)"),
        (classifier(1), regression(), {}, "labels of mine are numbers, .* give a metric"),
        (classifier(3), regression(2), {"metric": near}, "a label of mine has, 2, but .* gives 3"),
        (classifier(3), regression(), {"metric": near}, "as a label of mine has, one number, but .* gives 3"),
    ],
)  # fmt: skip
def test_outputs_that_do_not_suit_the_labels_are_refused(
    model: nn.Module, data: Dataset, settings: dict[str, Any], fault: str
) -> None:
    with pytest.raises(InputError, match=fault):
        simulate(model, data, FLEET, **QUICK, **settings)


@pytest.mark.parametrize(
    ("sample", "token", "fault"),
    [(2, 3, "3, too large"), (40, 7, "7, too large"), (119, 9, "9, too large"), (0, -1, "-1, below 0")],
)
def test_tokens_that_the_model_lacks_are_told(sample: int, token: int, fault: str) -> None:
    """Wherever they are, in the samples for training or for testing."""
    few = seeded(lambda: nn.Sequential(nn.Embedding(3, 4), nn.Flatten(), nn.Linear(4 * LENGTH, 2)))
    x = torch.zeros(120, LENGTH, dtype=torch.int64)
    x[sample, 0] = token
    told = f"a token of mine is {fault} for the model's embedding of 3 rows"
    with pytest.raises(InputError, match=told):
        simulate(few, data_with(torch.arange(120) % 2, x), FLEET, **QUICK)
    assert not any(module._forward_pre_hooks for module in few.modules())


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (
            torch.utils.data.TensorDataset(numbers(), numbers()),
            r"TensorDataset: make one with Dataset\.of_torch",
        ),
        ((numbers(), numbers()), r"got a tuple: make one with Dataset\.of_arrays"),
    ],
)
def test_data_that_are_no_data_set_are_refused(data: Any, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        simulate(classifier(), data, FLEET, **QUICK)


def test_data_of_devices_are_used_where_no_shares_are_given() -> None:
    from dataclasses import replace

    parts = {"3": np.arange(60, 90), "1": np.arange(20), "2": np.arange(20, 60)}
    data = replace(classes(), shares=parts)
    own, given = (
        simulate(classifier(), data, FLEET, **QUICK, shares=shares)
        for shares in (None, [parts["1"], parts["2"], parts["3"]])
    )
    assert own.training.samples.tolist() == [20, 40, 30]
    assert [record.loss for record in own] == [record.loss for record in given]


def test_a_goal_with_labels_that_are_numbers() -> None:
    """The loss ends training, and the metric says which model is the best."""
    settings = QUICK | {"rounds": 40, "goal": Goal(loss=0.5)}
    training = simulate(
        classifier(1), regression(), FLEET, **settings, metric=near, serving=Serving(keep="best")
    )
    *_, last = training
    assert last.held_out_loss is not None
    assert last.held_out_loss <= 0.5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_other_labels_are_trained_alike_on_a_gpu(kind: str) -> None:
    """Where rounds are recorded, and batches are filled up with samples that do not count."""
    make, load, settings = KINDS[kind]
    losses = []
    for machine in (Machine(engine="reference"), Machine(device="cuda")):
        training = simulate(
            make(),
            load(),
            FLEET,
            **QUICK | {"strategy": "rbs+cut=1"},
            **settings,
            held_out=0.1,
            machine=machine,
        )
        losses.append([(record.loss, record.test_loss or 0, record.accuracy or 0) for record in training])
    np.testing.assert_allclose(losses[0], losses[1], rtol=5e-3, atol=5e-3)  # products use TF32
