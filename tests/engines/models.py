"""Small models of many kinds, in float64, so that two ways to the same numbers must meet closely."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from hasfl.networks import LayeredModel, small_cnn

CLASSES = 3
FEATURES = 6
TOKENS, WORDS = 5, 7


class AsDouble(nn.Module):
    """Whatever came before, everything after this is in float64."""

    def forward(self, x: Tensor) -> Tensor:
        return x.double()


class Residual(nn.Module):
    """x + f(x), with the norm inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU())
        self.back = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.back(self.body(x))


class ResidualConv(nn.Module):
    """A residual block of an image network, with batch norm and a projected shortcut."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out)
        self.shortcut = nn.Conv2d(channels, out, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)) + self.shortcut(x))


class Tied(nn.Module):
    """One weight used twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Attention(nn.Module):
    """Self-attention over tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x, x, x, need_weights=False)[0]


class MeanOverTokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Centred(nn.Module):
    """Looks at the whole batch, as no layer of torch without weights does."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Recurrent(nn.Module):
    """The last output of an LSTM over the features, one at a time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cells = nn.LSTM(1, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x.unsqueeze(2))[0][:, -1]


def _vectors(**layers: nn.Module) -> LayeredModel:
    return LayeredModel(layers, torch.empty(1, FEATURES, dtype=torch.float64)).double()


def _head() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def plain() -> LayeredModel:
    """No norm, no chance: what every law of SGD holds for."""
    return _vectors(
        one=nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh()),
        two=nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU()),
        three=nn.Linear(8, FEATURES, bias=False),
        four=nn.Sequential(nn.Tanh(), _head()),
    )


def residual() -> LayeredModel:
    return _vectors(one=Residual(FEATURES), two=Residual(FEATURES), three=nn.ReLU(), four=_head())


def batch_norm_1d() -> LayeredModel:
    return _vectors(
        one=nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU()),
        two=nn.Sequential(nn.Linear(5, FEATURES), nn.BatchNorm1d(FEATURES, momentum=None)),
        three=nn.BatchNorm1d(FEATURES, affine=False, track_running_stats=False),
        four=_head(),
    )


def dropout() -> LayeredModel:
    return _vectors(
        one=nn.Sequential(nn.Linear(FEATURES, 12), nn.Dropout(0.3), nn.ReLU()),
        two=nn.Sequential(nn.Linear(12, FEATURES), nn.Dropout(0.5)),
        three=nn.Dropout(0.2),
        four=_head(),
    )


def tied() -> LayeredModel:
    return _vectors(one=Tied(FEATURES), two=nn.Tanh(), three=Tied(FEATURES), four=_head())


def parametrised() -> LayeredModel:
    return _vectors(
        one=weight_norm(nn.Linear(FEATURES, FEATURES)),
        two=nn.Sequential(nn.Tanh(), spectral_norm(nn.Linear(FEATURES, FEATURES))),
        three=nn.PReLU(),
        four=_head(),
    )


def centred() -> LayeredModel:
    return _vectors(
        one=nn.Linear(FEATURES, FEATURES),
        two=Centred(),
        three=nn.Sequential(nn.Linear(FEATURES, FEATURES), Centred(), nn.Tanh()),
        four=_head(),
    )


def frozen() -> LayeredModel:
    model = _vectors(one=nn.Linear(FEATURES, FEATURES), two=Residual(FEATURES), three=nn.Tanh(), four=_head())
    model.layers["one"].requires_grad_(False)
    model.layers["two"].back.requires_grad_(False)
    return model


def recurrent() -> LayeredModel:
    return _vectors(one=nn.Tanh(), two=Recurrent(4), three=nn.Linear(4, FEATURES), four=_head())


def token() -> LayeredModel:
    layers = {
        "words": nn.Embedding(WORDS, FEATURES),
        "attention": nn.Sequential(Attention(FEATURES), nn.LayerNorm(FEATURES)),
        "mixing": nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), MeanOverTokens()),
        "head": _head(),
    }
    return LayeredModel(layers, torch.empty(1, TOKENS, dtype=torch.int64)).double()


def residual_images() -> LayeredModel:
    layers = {
        "stem": nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        "block1": ResidualConv(4, 4),
        "block2": ResidualConv(4, 6),
        "head": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, CLASSES)),
    }
    return LayeredModel(layers, torch.empty(1, 1, 8, 8, dtype=torch.float64)).double()


def _small_cnn(norm: str) -> Callable[[], LayeredModel]:
    def made() -> LayeredModel:
        model = small_cnn(CLASSES, norm).double()
        model.example_input = model.example_input.double()
        return model

    return made


MODELS: dict[str, Callable[[], LayeredModel]] = {
    "plain": plain,
    "residual": residual,
    "batch norm 1d": batch_norm_1d,
    "dropout": dropout,
    "tied": tied,
    "parametrised": parametrised,
    "centred": centred,
    "frozen": frozen,
    "recurrent": recurrent,
    "token": token,
    "residual images": residual_images,
    **{f"small-cnn {norm}": _small_cnn(norm) for norm in ("batch", "group", "none")},
}


def model(name: str) -> LayeredModel:
    """A model with the same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        return MODELS[name]()
