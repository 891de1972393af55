"""How much faster is a round of a small transformer in the simulated engine than in the loop over devices?

    python -m benchmarks.bench_transformers
    python -m benchmarks.bench_transformers --models bert,hf-bert --devices 8 --rounds 15

The loop is the reference engine. Both engines train the same model on the same samples. They take turns, one
round each, and the ratio is that of their medians. The time is the CPU time of one thread, so that other work
on the machine does not count. `bert` and `vit` are plain torch modules of the usual structure. `hf-bert` and
`hf-vit` are Hugging Face's models with random weights; they are left out if the package transformers is not
installed. The data are random numbers, because only time is measured.
"""

import argparse
import importlib
import importlib.util
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hasfl import LayeredModel, Seeds, layered
from hasfl.learning.engine import Job, LocalEngine
from hasfl.learning.optimizers import Sgd, Updates
from hasfl.learning.reference_engine import ReferenceEngine
from hasfl.learning.simulated_engine import SimulatedEngine
from hasfl.learning.training_data import TrainingData
from hasfl.plan import Order, Plan
from hasfl.schedule import RateSchedule

WIDTH, HEADS, BLOCKS = 32, 4, 2
WORDS, TOKENS = 100, 16  # size of the vocabulary, and length of a text
IMAGE, PATCH, CHANNELS = 32, 8, 3  # pixels of a side of an image and of a patch (16 patches), and channels
CLASSES = 4
DROPOUT = 0.1  # share of dropped values, as in BERT
SAMPLES = 40  # samples of each device
LARGEST_RAGGED = 15  # the largest batch size in a ragged case, so that the mean is 8
NOT_TIMED = 2  # untimed first rounds of each engine
COLUMNS = (
    "model",
    "N",
    "b",
    "cut",
    "layers at once",
    "loop ms",
    "ours ms",
    "ratio",
    "quartiles of the ratio",
)


class Block(nn.Module):
    """A transformer block: attention and two linear layers, each with a residual and a norm."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.by_head(of(x)) for of in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.dropout(self.out(attended)))
        return self.norms[1](x + self.dropout(self.narrow(F.gelu(self.wide(x)))))  # type: ignore[no-any-return]

    def by_head(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], HEADS, -1).transpose(1, 2)


class Bert(nn.Module):
    """A classifier of texts: embedded words and positions, blocks, and a class from the first token."""

    def __init__(self, dropout: float = DROPOUT) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(dropout) for _ in range(BLOCKS)))
        self.pooler, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.words(tokens) + self.positions.weight
        x = self.blocks(self.dropout(self.norm(embedded)))
        return self.head(torch.tanh(self.pooler(x[:, 0])))  # type: ignore[no-any-return]


class ViT(nn.Module):
    """A classifier of images: patches after a class token, a parameter for each position, and blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, (IMAGE // PATCH) ** 2 + 1, WIDTH))
        self.blocks = nn.Sequential(*(Block(dropout=0.0) for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])  # type: ignore[no-any-return]


class Logits(nn.Module):
    """A Hugging Face model that returns only its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits  # type: ignore[no-any-return]


def hugging_face(name: str, **config: Any) -> nn.Module:
    transformers = importlib.import_module("transformers")

    sizes = {
        "hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS,
        "intermediate_size": 2 * WIDTH, "num_labels": CLASSES,
    }  # fmt: skip
    kind = "SequenceClassification" if name == "Bert" else "ImageClassification"
    made = getattr(transformers, f"{name}Config")(**sizes, **config)
    return Logits(getattr(transformers, f"{name}For{kind}")(made))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": Bert,
    "bert without dropout": lambda: Bert(dropout=0.0),
    "vit": ViT,
    "hf-bert": lambda: hugging_face("Bert", vocab_size=WORDS, max_position_embeddings=TOKENS),
    "hf-vit": lambda: hugging_face("ViT", image_size=IMAGE, patch_size=PATCH, num_channels=CHANNELS),
}


def samples(model: str, count: int) -> Tensor:
    if "bert" in model:
        return torch.randint(0, WORDS, (count, TOKENS))
    return torch.randn(count, CHANNELS, IMAGE, IMAGE)


def made(name: str) -> LayeredModel:
    torch.manual_seed(0)
    return layered(MODELS[name](), samples(name, 2))


def engine_of(kind: type[LocalEngine], name: str, devices: int) -> LocalEngine:
    model = made(name)
    x = samples(name, devices * SAMPLES)
    y = torch.randint(0, CLASSES, (len(x),))
    data = TrainingData.of(x, y, np.array_split(np.arange(len(x)), devices), Seeds(0))
    updates = Updates(Sgd(), RateSchedule(0.01))
    return kind(Job(model=model, data=data, test=(x[:10], y[:10]), updates=updates))


def row(name: str, devices: int, batch: str, cut: str, rounds: int) -> str:
    engines = [engine_of(kind, name, devices) for kind in (ReferenceEngine, SimulatedEngine)]
    layers, everyone = len(engines[0].layers), np.arange(devices)
    cuts = np.full(devices, layers if cut == "all" else layers // 2)
    seconds: list[list[float]] = [[], []]
    for engine in engines:
        engine.split(int(cuts.max()), everyone)
    for t in range(1, NOT_TIMED + rounds + 1):
        drawn = np.random.default_rng(t)
        b = (
            drawn.integers(1, LARGEST_RAGGED, devices, endpoint=True)
            if batch == "ragged"
            else np.full(devices, int(batch))
        )
        order = Order(round=t, devices=everyone, plan=Plan(b, cuts), drawn=np.zeros(devices, dtype=np.int64))
        for engine, taken in zip(engines, seconds, strict=True):
            began = time.process_time()
            engine.split_train(order)
            taken.append(time.process_time() - began)
    loop, ours = (statistics.median(taken[NOT_TIMED:]) for taken in seconds)
    ratios = statistics.quantiles(
        [a / b for a, b in zip(*(taken[NOT_TIMED:] for taken in seconds), strict=True)]
    )
    at_once = f"{layers - len(engines[1].looped_layers)} of {layers}"
    cells = (
        name, devices, batch, cut, at_once, f"{loop * 1e3:.1f}", f"{ours * 1e3:.1f}", f"{loop / ours:.2f}",
        f"{ratios[0]:.2f} to {ratios[2]:.2f}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--devices", default="8,50")
    parser.add_argument("--batches", default="8,ragged", help="a number, or ragged: random sizes")
    parser.add_argument("--cuts", default="half,all", help="how many layers are private")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.machine()}, torch {torch.__version__}, one thread\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name in options.models.split(","):
        if name.startswith("hf-") and importlib.util.find_spec("transformers") is None:
            continue
        for devices in map(int, options.devices.split(",")):
            for batch in options.batches.split(","):
                for cut in options.cuts.split(","):
                    print(row(name, devices, batch, cut, options.rounds), flush=True)


if __name__ == "__main__":
    main()
