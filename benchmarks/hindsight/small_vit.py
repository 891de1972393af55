"""A small vision transformer for the digits, whose family of networks was not used for guesses."""

import torch
from torch import Tensor, nn

SIDE, PATCH, WIDTH, HEADS, BLOCKS = 8, 2, 48, 4, 3
TOKENS = (SIDE // PATCH) ** 2


class Patches(nn.Module):
    """Turns patches of an image into tokens, with a learned parameter for each position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, WIDTH, PATCH, stride=PATCH)
        self.place = nn.Parameter(0.02 * torch.randn(TOKENS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Turn images (n, 1, 8, 8) into tokens (n, tokens, width)."""
        tokens: Tensor = self.embed(x).flatten(2).transpose(1, 2) + self.place
        return tokens


class Block(nn.Module):
    """A transformer block: attention and a feed-forward part, each after a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Turn tokens into tokens of the same shape."""
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.attention(self.before(x)).chunk(3, dim=-1)
        )
        seen = torch.softmax(query @ key.transpose(-1, -2) / (WIDTH / HEADS) ** 0.5, dim=-1) @ value
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        mixed: Tensor = x + self.feed(x)
        return mixed


class Head(nn.Module):
    """Computes the logits of classes from the mean of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Turn tokens (n, tokens, width) into logits (n, 10)."""
        classes: Tensor = self.out(self.norm(x).mean(dim=1))
        return classes


def small_vit() -> nn.Sequential:
    """The network of patches, three blocks and the head: five layers between which it can be cut."""
    return nn.Sequential(Patches(), *(Block() for _ in range(BLOCKS)), Head())
