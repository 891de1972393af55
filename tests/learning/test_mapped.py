"""Layers that run for all devices at once by vmap, against one device after the other."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hasfl.learning.batch_layout import Rows
from hasfl.learning.many_devices import Way, run_layer
from hasfl.learning.state import LayerState
from tests.learning.models import Attention, Causal, Positions
from tests.learning.test_per_device_functions import at_random, gradients_of, replicas

SIZES = [(2, 4, 3), (1, 5, 1), (3, 3, 3), (4,)]
# float64; sums of at most some hundred products in another order.
TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}
TOKENS, WIDTH, WORDS = 5, 6, 7
TEXT, IMAGE = (TOKENS, WIDTH), (4, 5, 5)


class WithParameter(nn.Module):
    """A function of the samples and of one parameter."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.function, self.parameter = function, nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.parameter)


class Attending(nn.Module):
    """Multi-head attention with the arguments that torch allows."""

    def __init__(self, *, need_weights: bool = True, batch_first: bool = True, causal: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first)
        self.need_weights, self.batch_first = need_weights, batch_first
        self.mask = torch.ones(TOKENS, TOKENS).triu(1).bool() if causal else None

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        y = self.attention(x, x.tanh(), x, need_weights=self.need_weights, attn_mask=self.mask)[0]
        return y if self.batch_first else y.transpose(0, 1)


class SharedWords(nn.Module):
    """The embedding is also the last layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.words(tokens).tanh() @ self.words.weight.T


def encoder_layer(*, norm_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, norm_first=norm_first, batch_first=True)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {  # and the shape of a sample
    "words": (lambda: nn.Embedding(WORDS, WIDTH), (TOKENS,)),
    "words with padding": (lambda: nn.Embedding(WORDS, WIDTH, padding_idx=2), (TOKENS,)),
    "words with the last as padding": (
        lambda: WithParameter(lambda x, p: F.embedding(x, p, padding_idx=-1), WORDS, WIDTH),
        (TOKENS,),
    ),
    "shared words": (SharedWords, (TOKENS,)),
    "class token and positions": (lambda: Positions(TOKENS, WIDTH), TEXT),
    "some positions": (lambda: WithParameter(lambda x, p: x + p[:, : x.shape[1]], 1, 9, WIDTH), TEXT),
    "scaled by a parameter": (lambda: WithParameter(lambda x, p: p * x, WIDTH), TEXT),
    "one number": (lambda: WithParameter(lambda x, p: x * p.exp()), TEXT),
    "product with a parameter": (lambda: WithParameter(torch.matmul, WIDTH, 4), TEXT),
    "product as an operator": (lambda: WithParameter(lambda x, p: x @ p, WIDTH, 4), TEXT),
    "parameter times samples": (lambda: WithParameter(lambda x, p: p @ x, 4, TOKENS), TEXT),
    "einsum": (lambda: WithParameter(lambda x, p: torch.einsum("btc,cd->btd", x, p), WIDTH, 3), TEXT),
    "linear on swapped axes": (
        lambda: WithParameter(lambda x, p: F.linear(x.transpose(1, 2), p), 3, TOKENS),
        TEXT,
    ),
    "rms norm": (lambda: nn.RMSNorm(WIDTH), TEXT),
    "layer norm": (lambda: nn.LayerNorm(WIDTH), TEXT),
    "attention": (lambda: Attention(WIDTH), TEXT),
    "attention with weights": (lambda: Attending(), TEXT),
    "attention with tokens first": (lambda: Attending(batch_first=False), TEXT),
    "causal attention": (lambda: Attending(need_weights=False, causal=True), TEXT),
    "causal attention by hand": (lambda: Causal(WIDTH), TEXT),
    "encoder layer": (lambda: encoder_layer(norm_first=False), TEXT),
    "encoder layer, norm first": (lambda: encoder_layer(norm_first=True), TEXT),
    "slope": (nn.PReLU, TEXT),
    "slope for each channel": (lambda: nn.PReLU(4), IMAGE),
    "transposed convolution": (lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, groups=1), IMAGE),
    "depthwise convolution": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), IMAGE),
    "divided by its length": (lambda: WithParameter(lambda x, p: p * x / x.norm(dim=-1, keepdim=True)), TEXT),
}


def samples_for(name: str, count: int) -> Tensor:
    shape = LAYERS[name][1]
    if len(shape) == 1:
        return torch.randint(0, WORDS, (count, *shape), generator=torch.Generator().manual_seed(7))
    return at_random((count, *shape), 7).requires_grad_()


def outcome(
    way: Way, layer: nn.Module, x: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, list[Tensor], LayerState]:
    state = replicas(layer, len(sizes))
    y = run_layer(way, layer, state, x, Rows(sizes), range(len(sizes)) if way is Way.LOOPED else ())
    leaves = [*state.weights.values(), *([x] if x.requires_grad else [])]
    return y, gradients_of(y, leaves), state


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients(name: str, sizes: Sequence[int]) -> None:
    layer, x = LAYERS[name][0](), samples_for(name, sum(sizes))
    y, gradients, _ = outcome(Way.MAPPED, layer, x, sizes)
    z, expected, _ = outcome(Way.LOOPED, layer, x, sizes)
    torch.testing.assert_close(y, z, **TOLERANCE)
    assert any(gradient.abs().max() > 0.01 for gradient in expected)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE)


@pytest.mark.parametrize("name", ["words with padding", "words with the last as padding"])
def test_no_device_learns_the_padding(name: str) -> None:
    """Every device sees the padding in every sample."""
    padding = 2 if name == "words with padding" else WORDS - 1
    x = samples_for(name, 7)
    x[:, 0] = padding
    _, (gradient,), _ = outcome(Way.MAPPED, LAYERS[name][0](), x, (2, 4, 1))
    assert not gradient[:, padding].any()
    assert gradient.abs().amax(dim=(1, 2)).min() > 0


def test_buffers_that_change_are_kept() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.PReLU()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return self.slope(x)

    _, _, state = outcome(Way.MAPPED, Counted(), at_random((5, 3), 0), (2, 3))
    assert state.buffers["calls"].tolist() == [1, 2]  # `replicas` adds its number to each


def test_a_layer_without_weights() -> None:
    x = at_random((5, 3), 0)
    state = LayerState.of(nn.Tanh(), lambda weight: {}).replicated(2)
    assert torch.equal(run_layer(Way.MAPPED, nn.Tanh(), state, x, Rows((2, 3))), x.tanh())


def test_attention_is_no_slow_fallback(recwarn: pytest.WarningsRecorder) -> None:
    """torch warns where vmap itself loops over devices. Here every warning would be an error."""
    for name in ("attention", "causal attention", "encoder layer"):
        outcome(Way.MAPPED, LAYERS[name][0](), samples_for(name, 5), (2, 3))
    assert not recwarn.list
