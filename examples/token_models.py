"""Three models of your own over tokens, trained over a fleet: a GPT, torch's transformer encoder, an LSTM.

Every callable returns a plain module, so its trained weights load back with `load_state_dict`. Train one of
them from Python with `python examples/token_models.py gpt` (or encoder, lstm), or from a scenario with
`hasfl train examples/tokens.toml`.

The task: a sample is a row of tokens, and its class is its last token but one.
"""

import sys

import torch
from torch import Tensor, nn

from hasfl import Dataset, FleetRanges, Seeds, draw_fleet, simulate

TOKENS, LENGTH, WIDTH, HEADS, BLOCKS = 8, 6, 32, 4, 2


def data(samples: int = 1200, test: int = 200) -> Dataset:
    """Random rows of tokens, and the class of each row."""
    x = torch.randint(TOKENS, (samples + test, LENGTH), generator=torch.Generator().manual_seed(0))
    y = x[:, -2]
    return Dataset.of_arrays("rows of tokens", x[:samples], y[:samples], x[samples:], y[samples:])


class GPT(nn.Module):
    """Learned positions, a causal mask, and the last token's output."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(_block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next token, of shape (samples, TOKENS)."""
        length = x.size(1)
        mask = torch.triu(torch.ones(length, length, device=x.device), diagonal=1).bool()
        x = self.token(x) + self.position(torch.arange(length, device=x.device))
        for block in self.blocks:
            x = block(x, src_mask=mask)
        return self.head(self.norm(x))[:, -1]


class Encoder(nn.Module):
    """Torch's own encoder, which sees the whole row; the mean over tokens is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(TOKENS, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        nn.init.normal_(self.position)
        self.encoder = nn.TransformerEncoder(_block(), BLOCKS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the classes, of shape (samples, TOKENS)."""
        return self.head(self.encoder(self.token(x) + self.position).mean(dim=1))


class LSTM(nn.Module):
    """An LSTM of which the output after the last token is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS)
        self.memory = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the classes, of shape (samples, TOKENS)."""
        outputs, _ = self.memory(self.token(x))
        return self.head(outputs[:, -1])


def _block() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)


MODELS = {"gpt": GPT, "encoder": Encoder, "lstm": LSTM}

if __name__ == "__main__":
    torch.manual_seed(0)
    model = MODELS[sys.argv[1] if len(sys.argv) > 1 else "gpt"]()
    fleet = draw_fleet(FleetRanges(devices=4), Seeds(0))
    training = simulate(
        model, data(), fleet, strategy="b=32+cut=2", optimizer="adam", learning_rate=0.005, rounds=120
    )
    for record in training:
        if record.accuracy is not None:
            print(f"round {record.round}: loss {record.loss:.3f}, {record.accuracy:.1%} right")
    model.load_state_dict(training.model())  # the module is trained now
