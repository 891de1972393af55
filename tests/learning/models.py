"""Small models of many kinds, in float64, so that two ways to the same numbers must meet closely."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from hasfl.models.layered_model import LayeredModel
from hasfl.models.networks import small_cnn

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


class SwapLastAxes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Centred(nn.Module):
    """Looks at the whole batch, as no layer of torch without weights does."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Neighbours(nn.Module):
    """Adds the sample before it to each sample, and the last sample to the first."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.roll(1, 0)


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
    """With an ε that keeps the variance of two or three samples away from 0, which would enlarge rounding."""
    return _vectors(
        one=nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5, eps=0.1), nn.ReLU()),
        two=nn.Sequential(nn.Linear(5, FEATURES), nn.BatchNorm1d(FEATURES, eps=0.1, momentum=None)),
        three=nn.BatchNorm1d(FEATURES, eps=0.1, affine=False, track_running_stats=False),
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


def neighbours() -> LayeredModel:
    """Layers that mix samples, and whose results do not change if the last sample is repeated."""
    return _vectors(
        one=nn.Linear(FEATURES, FEATURES),
        two=Neighbours(),
        three=nn.Sequential(nn.PReLU(FEATURES), Neighbours(), nn.Tanh()),
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


class Positions(nn.Module):
    """A class token before all others, and a parameter for each position."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, tokens + 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.positions


class Causal(nn.Module):
    """Attention to earlier tokens only, by one product with a parameter, and a norm with a scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.all_three = nn.Parameter(torch.randn(width, 3 * width) / width)
        self.bias = nn.Parameter(torch.zeros(3 * width))
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("earlier", torch.ones(TOKENS, TOKENS).tril().bool())

    def forward(self, x: Tensor) -> Tensor:
        normal = self.scale * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3)
        flat = torch.addmm(self.bias, normal.reshape(-1, x.shape[-1]), self.all_three)
        q, k, v = flat.view(*x.shape[:-1], -1).chunk(3, dim=-1)
        weights = (q @ k.transpose(1, 2)).masked_fill(~self.earlier, -torch.inf).softmax(-1)
        return x + weights @ v


def encoder() -> LayeredModel:
    """With dropout in the attention and after it."""
    layers = {
        "words": nn.Sequential(nn.Embedding(WORDS, FEATURES, padding_idx=1), Positions(TOKENS, FEATURES)),
        "block": nn.TransformerEncoderLayer(FEATURES, 2, 8, dropout=0.2, batch_first=True),
        "mixing": nn.Sequential(MeanOverTokens(), nn.Dropout(0.3)),
        "head": _head(),
    }
    return LayeredModel(layers, torch.empty(1, TOKENS, dtype=torch.int64)).double()


def causal() -> LayeredModel:
    layers = {
        "words": nn.Embedding(WORDS, FEATURES),
        "first": Causal(FEATURES),
        "second": nn.Sequential(Causal(FEATURES), nn.RMSNorm(FEATURES), MeanOverTokens()),
        "head": _head(),
    }
    return LayeredModel(layers, torch.empty(1, TOKENS, dtype=torch.int64)).double()


def vision() -> LayeredModel:
    patches = nn.Sequential(nn.Conv2d(1, FEATURES, 4, 4), nn.Flatten(2))
    layers = {
        "patches": nn.Sequential(patches, SwapLastAxes(), Positions(4, FEATURES)),
        "block": nn.TransformerEncoderLayer(FEATURES, 2, 8, dropout=0.0, norm_first=True, batch_first=True),
        "mixing": nn.Sequential(nn.LayerNorm(FEATURES), MeanOverTokens()),
        "head": _head(),
    }
    return LayeredModel(layers, torch.empty(1, 1, 8, 8, dtype=torch.float64)).double()


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
    "neighbours": neighbours,
    "frozen": frozen,
    "recurrent": recurrent,
    "token": token,
    "encoder": encoder,
    "causal": causal,
    "vision": vision,
    "residual images": residual_images,
    **{f"small-cnn {norm}": _small_cnn(norm) for norm in ("batch", "group", "none")},
}


def model(name: str) -> LayeredModel:
    """A model with the same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        return MODELS[name]()
