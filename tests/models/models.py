"""Modules as users write them, for `layered()` to take apart."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ResidualNet(nn.Module):
    """Residual blocks, one of them with a projection, with relu modules that are used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.first = Block(8, 8)
        self.second = Block(8, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.stem(x)))
        x = self.second(self.first(x))
        x = F.adaptive_avg_pool2d(x, 1)
        x = x.view(x.size(0), -1)
        return self.head(x)


class Block(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, padding=1)
        self.two = nn.Conv2d(after, after, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else None

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.shortcut is None else self.shortcut(x)
        out = self.two(self.relu(self.one(x)))
        out += kept
        return self.relu(out)


class Encoder(nn.Module):
    """A transformer encoder by hand: heads, residual streams, a learnt position, sizes read early."""

    def __init__(self, tokens: int = 6, width: int = 8, blocks: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.position = nn.Parameter(torch.randn(1, tokens, width))
        self.blocks = nn.ModuleList(EncoderBlock(width) for _ in range(blocks))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        batch, _, _ = x.shape
        x = self.embed(x) * scale + self.position
        for block in self.blocks:
            x = block(x)
        if len(x.shape) == 3:
            x = x.mean(dim=1)
        return self.head(x.reshape(batch, -1))


class EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + F.dropout(self.mlp(self.norm2(x)), 0.0, training=self.training)


class TorchEncoder(nn.Module):
    """The same with torch's own layers, whose forward asks many questions about its input."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.embed = nn.Linear(4, 8)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(dim=1))


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)), nn.Linear(8, 3)
    )


def half_buffer() -> nn.Module:
    module = plain()
    module.register_buffer("scale", torch.ones(3, dtype=torch.bfloat16))
    return module


class Dropping(nn.Module):
    """Dropout as a function, which behaves otherwise in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.one(x), 0.5, self.training)
        x = F.dropout(self.two(x), p=0.5, training=self.training)
        return self.three(x)


class Tied(nn.Module):
    """The first and the third layer are one weight: no cut may part them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three, self.four = (nn.Linear(4, 4) for _ in range(4))
        self.three.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.four(torch.relu(self.three(torch.relu(self.two(torch.relu(self.one(x)))))))


class Overwriting(nn.Module):
    """Works in place without using the result, and uses what was overwritten later."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        x.mul_(2.0)
        y = torch.relu_(x)
        return self.three(torch.tanh(self.two(y) + x))


class Noisy(nn.Module):
    """One child adds noise in training only; another loops over the batch."""

    class AddNoise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                return x + torch.randn_like(x)
            return x

    class Looping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.each(x[k : k + 1]) for k in range(x.size(0))])

    def __init__(self) -> None:
        super().__init__()
        self.one, self.noise, self.loop, self.two = (
            nn.Linear(4, 4),
            self.AddNoise(),
            self.Looping(),
            nn.Linear(4, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.loop(self.noise(self.one(x))))


class Picky(nn.Module):
    """Looks at the data to decide what to do."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.positive, self.negative = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return self.positive(x) if x.sum() > 0 else self.negative(x)


class Chained(nn.Module):
    """The input is needed to the very end, so two tensors cross everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x))) + x


class TwoResults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.one(x)
        return x, self.two(x)


class ModeSwitch(nn.Module):
    """The root itself does other things in training."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return self.two(x) if self.training else x


class Tokens(nn.Module):
    """Whole numbers in: an embedding comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.mix(self.embed(x))).mean(dim=1))


class Decoder(nn.Module):
    """A causal transformer over tokens: positions made from a size, a mask cut to it."""

    mask: Tensor

    def __init__(self, tokens: int = 6, width: int = 8, blocks: int = 2) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(11, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True) for _ in range(blocks)
        )
        self.head = nn.Linear(width, 11, bias=False)
        self.register_buffer("mask", torch.ones(tokens, tokens).triu(1).bool())

    def forward(self, x: Tensor) -> Tensor:
        _, tokens = x.shape
        x = self.token(x) + self.position(torch.arange(tokens, device=x.device))
        for block in self.blocks:
            x = block(x, src_mask=self.mask[:tokens, :tokens])
        return self.head(x)


class VisionTransformer(nn.Module):
    """Patches, a class token for every sample, learnt positions, torch's own layers."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 5, width))
        self.blocks = nn.Sequential(
            *(nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True) for _ in range(2))
        )
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(batch, -1, -1), x], 1) + self.position
        return self.head(self.blocks(x)[:, 0])


class DenseNet(nn.Module):
    """Every step sees all earlier ones, so few places have a single tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.two, self.narrow = nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(24, 8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen = [self.stem(x)]
        for step in (self.one, self.two):
            seen.append(F.relu(step(torch.cat(seen, 1))))
        return self.head(self.narrow(torch.cat(seen, 1)).mean((2, 3)))


class CausalDecoder(nn.Module):
    """A transformer that makes its causal mask from the size of its input, for all blocks at once."""

    def __init__(self, tokens: int = 6, width: int = 8, blocks: int = 2) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(11, width), nn.Parameter(torch.randn(tokens, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True) for _ in range(blocks)
        )
        self.head = nn.Linear(width, 11, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[1]
        ones = torch.ones(tokens, tokens, device=x.device)
        mask = torch.triu(ones, diagonal=1).bool()
        shape = x.shape[:1] + x.shape[1:]
        x = self.token(x) + self.position[:tokens]
        for block in self.blocks:
            x = block(x, src_mask=mask)
        return self.head(x).mean(dim=2).reshape(shape)


class SharedNoise(nn.Module):
    """The same random numbers are used in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(x.size(0), 4, device=x.device)
        return self.three(self.two(self.one(x) + noise) - noise)


class MakesModules(nn.Module):
    """Calls a module that it makes in its forward, and asks for a shape after a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.ReLU()(self.norm(self.one(x)))
        pad = int(x.shape[-1]) % 4
        return self.two(F.pad(x, (pad, pad, pad, pad))).mean(dim=(2, 3))


class Positions(nn.Module):
    """Needs a second input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, positions: Tensor, scale: float = 1.0) -> Tensor:
        return self.two(self.one(x) + positions * scale)


class Answers(nn.Module):
    """Returns what it is told to make of the result."""

    def __init__(self, wrap: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.one, self.two, self.wrap = nn.Linear(4, 4), nn.Linear(4, 3), wrap

    def forward(self, x: Tensor) -> object:
        return self.wrap(self.two(torch.relu(self.one(x))))
