"""Losses and metrics for every kind of labels, against torch and against loops."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hasfl.data.dataset import IGNORED
from hasfl.data.scoring import cross_entropy, right_answers, squared_error

SAMPLES, TOKENS, CLASSES = 6, 5, 4


def tokens(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Outputs (n, T, classes) and labels (n, T), some of them ignored, at least one of each sample not."""
    draw = torch.Generator().manual_seed(seed)
    outputs = torch.randn(SAMPLES, TOKENS, CLASSES, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (SAMPLES, TOKENS), generator=draw)
    labels[:, 1:][torch.rand(SAMPLES, TOKENS - 1, generator=draw) < 0.4] = IGNORED
    return outputs, labels


def test_one_class_each_is_torchs_own() -> None:
    outputs, labels = tokens()[0][:, 0], torch.arange(SAMPLES) % CLASSES
    assert torch.equal(cross_entropy(outputs, labels), F.cross_entropy(outputs, labels, reduction="none"))
    assert right_answers(outputs, labels).tolist() == [
        float(max(range(CLASSES), key=lambda c: float(row[c])) == label)
        for row, label in zip(outputs, labels.tolist(), strict=True)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_tokens_are_averaged_over_those_that_count(seed: int) -> None:
    outputs, labels = tokens(seed)
    losses, scores = cross_entropy(outputs, labels), right_answers(outputs, labels)
    for i in range(SAMPLES):
        counted = [t for t in range(TOKENS) if labels[i, t] != IGNORED]
        each = [-float(outputs[i, t].log_softmax(0)[labels[i, t]]) for t in counted]
        right = [int(outputs[i, t].argmax()) == int(labels[i, t]) for t in counted]
        assert float(losses[i]) == pytest.approx(sum(each) / len(counted), rel=1e-12)
        assert float(scores[i]) == pytest.approx(sum(right) / len(counted), rel=1e-12)


def test_without_ignored_tokens_the_mean_is_torchs_mean() -> None:
    outputs, labels = tokens()
    labels = labels.clamp(min=0)
    whole = F.cross_entropy(outputs.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(cross_entropy(outputs, labels).mean(), whole, rtol=1e-12, atol=0)


def test_classes_may_be_on_the_second_axis() -> None:
    """As in images, where every pixel has a class."""
    outputs, labels = tokens()
    for score in (cross_entropy, right_answers):
        assert torch.equal(score(outputs.movedim(-1, 1).contiguous(), labels), score(outputs, labels))
    pixels = torch.randn(2, CLASSES, 3, 5), torch.randint(0, CLASSES, (2, 3, 5))
    torch.testing.assert_close(cross_entropy(*pixels).mean(), F.cross_entropy(*pixels))


def test_squared_errors() -> None:
    draw = torch.Generator().manual_seed(0)
    outputs, labels = torch.randn(2, SAMPLES, 3, generator=draw, dtype=torch.float64)
    torch.testing.assert_close(squared_error(outputs, labels).mean(), F.mse_loss(outputs, labels))
    assert squared_error(outputs, labels).shape == (SAMPLES,)
    one = squared_error(outputs[:, :1], labels[:, 0])  # outputs (n, 1) for labels (n,)
    torch.testing.assert_close(one, (outputs[:, 0] - labels[:, 0]) ** 2)
