"""A data set is checked once, and normalised by what its training set holds."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasfl.data.dataset import BLOCK, Dataset, channel_statistics, raw_bits
from hasfl.errors import InputError

X, Y = np.zeros((4, 3), np.float32), np.array([0, 1, 2, 1])
TWO = np.stack([Y, Y], 1)  # labels of two tokens for each sample


def of(
    x_train: object = X, y_train: object = Y, x_test: object = X, y_test: object = Y, **rest: object
) -> Dataset:
    return Dataset.of_arrays("mine", x_train, y_train, x_test, y_test, **rest)


def bytes_of(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@given(st.integers(2, 9), st.integers(1, 4), st.sampled_from([3, 4]), st.integers(0, 1000))
def test_images_are_normalised_by_the_training_set(n: int, channels: int, rank: int, seed: int) -> None:
    shape = (5, 6, channels)[: rank - 1]
    train, test = bytes_of((n, *shape), seed), bytes_of((3, *shape), seed + 1)
    data = of(train, np.zeros(n, int), test, np.zeros(3, int))
    as_drawn = (train[..., None] if rank == 3 else train).astype(float)
    mean, std = as_drawn.mean((0, 1, 2)), as_drawn.std((0, 1, 2))
    for given_images, made in ((train, data.x_train), (test, data.x_test)):
        images = given_images[..., None] if rank == 3 else given_images
        wanted = ((images - mean) / std).transpose(0, 3, 1, 2)
        assert made.dtype == torch.float32
        assert made.is_contiguous()
        np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_a_constant_channel_becomes_zero() -> None:
    train = bytes_of((5, 4, 4, 2))
    train[..., 1] = 77
    test = train.copy()
    test[0, 0, 0, 1] = 78
    data = of(train, np.zeros(5, int), test, np.zeros(5, int))
    assert (data.x_train[:, 1] == 0).all()
    assert data.x_test[0, 1, 0, 0] == 1


def test_statistics_do_not_depend_on_the_blocks() -> None:
    images = torch.from_numpy(bytes_of((2 * BLOCK + 7, 2, 3, 3)))
    mean, std = channel_statistics(images)
    exact = images.double()
    torch.testing.assert_close(mean, exact.mean((0, 2, 3)), rtol=1e-12, atol=0)
    torch.testing.assert_close(std, exact.std((0, 2, 3), correction=0), rtol=1e-10, atol=0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4", ">f8"])
def test_floats_are_taken_as_they_are(dtype: str) -> None:
    x = (np.arange(12).reshape(4, 3) * 100).astype(dtype)
    assert of(x, x_test=x).x_train.tolist() == x.tolist()
    assert of(x, x_test=x).x_train.dtype == torch.float32


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint16, np.uint32, ">i4"])
def test_other_whole_numbers_are_tokens(dtype: str) -> None:
    x = np.arange(12).reshape(4, 3).astype(dtype)
    data = of(x, x_test=x)
    assert data.x_train.dtype == torch.int64
    assert data.x_train.tolist() == x.tolist()


def test_tensors_are_accepted_and_need_no_copy() -> None:
    x, y = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 1], dtype=torch.int32)
    data = of(x, y, x.double(), y)
    assert data.x_train.data_ptr() == x.data_ptr()
    assert not data.x_train.requires_grad
    assert torch.equal(data.x_train, data.x_test)
    images = torch.from_numpy(bytes_of((4, 5, 5, 3)))
    assert torch.equal(of(images, y, images, y).x_train, of(images.numpy(), y, images.numpy(), y).x_train)


def test_arrays_that_torch_cannot_share_are_copied() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    frozen = x.copy()
    frozen.setflags(write=False)
    assert of(frozen, x_test=x[::-1]).x_train.tolist() == x.tolist()
    assert of(frozen, x_test=x[::-1]).x_test.tolist() == x[::-1].tolist()


def test_classes_and_shape() -> None:
    data = of()
    assert raw_bits(data.sample_shape, data.x_train.dtype) == 3 * 8  # a pixel is a byte
    assert raw_bits((5,), torch.int64) == 5 * 16  # and a token two
    assert (data.classes, data.class_names, data.sample_shape) == (3, ("0", "1", "2"), (3,))
    named = of(class_names=["cat", "dog", "eel", "fox"])
    assert (named.classes, named.class_names) == (4, ("cat", "dog", "eel", "fox"))
    only_in_test = of(y_test=np.array([0, 5, 0, 0]))
    assert only_in_test.classes == 6


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"y_train": Y[:3]}, "x_train has 4 samples but y_train has 3"),
        ({"x_test": X[:, :2]}, "one shape and type"),
        ({"x_test": X.astype(int)}, "one shape and type"),
        ({"x_train": bytes_of((4, 5, 5, 3)), "x_test": bytes_of((4, 5, 5, 1))}, "one shape and type"),
        ({"x_train": bytes_of((4, 5, 5)), "x_test": np.zeros((4, 5, 5))}, "one shape and type"),
        ({"x_train": bytes_of((4, 3, 32, 32)), "x_test": bytes_of((4, 3, 32, 32))}, "move the channels last"),
        ({"x_train": bytes_of((4, 9)), "x_test": bytes_of((4, 9))}, "NHW or NHWC"),
        ({"x_train": bytes_of((0, 5, 5)), "x_test": bytes_of((4, 5, 5))}, "at least one sample"),
        ({"x_train": X[:0], "y_train": Y[:0]}, "x_train must hold at least one sample"),
        ({"x_test": X[:0], "y_test": Y[:0]}, "x_test must hold at least one sample"),
        ({"x_train": np.full((4, 3), np.nan)}, "x_train must be finite"),
        ({"x_test": np.full((4, 3), 1e200)}, "x_test must be finite"),
        ({"x_train": X > 0, "x_test": X > 0}, "must hold numbers, got bool"),
        ({"x_train": torch.zeros(4, 3) > 0, "x_test": torch.zeros(4, 3) > 0}, "must hold numbers"),
        ({"x_train": [[1.0], [1.0, 2.0]]}, "unequal lengths"),
        ({"y_train": Y / 2}, "labels of one shape and type"),
        ({"y_test": TWO}, "labels of one shape and type"),
        ({"y_train": np.array([np.inf, 0, 0, 0]), "y_test": Y / 1.0}, "y_train must be finite"),
        ({"y_train": Y / 1.0, "y_test": Y / 1.0, "class_names": ["cat"]}, "labels are numbers, got 'cat'"),
        ({"y_train": TWO - 3, "y_test": TWO}, "-100 for tokens that do not .* a label -3"),
        ({"y_train": [[0, 1], [-100, -100], [1, 0], [0, 0]], "y_test": TWO}, "every token of sample 1"),
        ({"y_train": np.zeros((4, 0)), "y_test": np.zeros((4, 0))}, "a label for each sample"),
        ({"y_train": 3}, "int64 or numbers as float32, got torch.int64 of shape"),
        ({"y_train": Y - 1}, "from 0, got a label -1"),
        ({"y_train": Y + 10**9}, "a label is too large, 1000000002: number the classes anew"),
        ({"class_names": ["cat", "dog"]}, "from 0 to 1 for 2 class names, got 2"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_faulty_arrays_are_refused(fields: dict[str, object], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        of(**fields)


def test_the_type_itself_takes_only_what_training_takes() -> None:
    x, y = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(InputError, match=r"use Dataset\.of_arrays"):
        Dataset(name="mine", x_train=x, y_train=y, x_test=x, y_test=y)


def test_labels_of_every_kind() -> None:
    per_token = of(y_train=[[0, 1], [2, -100], [1, 1], [0, 3]], y_test=np.zeros((4, 2), int))
    assert (per_token.classes, per_token.outputs, per_token.one_class_each) == (4, 4, False)
    numbers = of(y_train=Y / 3, y_test=Y / 3)
    assert (numbers.classes, numbers.class_names, numbers.outputs, numbers.one_class_each) == (
        0,
        (),
        1,
        False,
    )
    assert numbers.y_train.dtype == torch.float32
    pairs = of(y_train=np.zeros((4, 2)), y_test=np.zeros((4, 2)))
    assert (pairs.classes, pairs.outputs) == (0, 2)
    bytes_as_classes = of(y_train=Y.astype(np.uint8), y_test=Y.astype(np.int8))
    assert (bytes_as_classes.classes, bytes_as_classes.one_class_each) == (3, True)


@pytest.mark.parametrize(
    "labels", [Y[:, None], Y[:, None].astype(np.uint8), torch.from_numpy(Y)[:, None], [[0], [1], [2], [1]]]
)
def test_a_column_of_classes_is_one_class_each(labels: object) -> None:
    data = of(y_train=labels, y_test=Y)
    assert torch.equal(data.y_train, torch.from_numpy(Y))
    assert data.one_class_each
    assert of(y_train=Y[:, None] / 2, y_test=Y[:, None] / 2).y_train.shape == (4, 1)  # numbers stay


@pytest.mark.parametrize("as_given", [np.asarray, torch.tensor, list])
def test_truth_values_are_two_classes(as_given: Callable[[list[bool]], object]) -> None:
    truths = as_given([False, True, True, False])
    data = of(y_train=truths, y_test=truths)
    assert (data.y_train.tolist(), data.y_train.dtype, data.classes) == ([0, 1, 1, 0], torch.int64, 2)
