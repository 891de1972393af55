"""Models of Hugging Face, from configurations with random weights: cut, equal, trained, loaded back."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hasfl import Dataset, Goal, Machine, layered, simulate, untie
from hasfl.errors import ModelError
from tests.extras import extra
from tests.learning.simulations import unequal_fleet

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]

CLASSES, TOKENS, LENGTH, DEVICES = 3, 20, 8, 3
WIDTHS = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {"vocab_size": TOKENS, "max_position_embeddings": 16}


class Logits(nn.Module):
    """Takes the logits of a classifier, or those after the last token of a language model."""

    def __init__(self, body: nn.Module, *, last: bool = False) -> None:
        super().__init__()
        self.body, self.last = body, last

    def forward(self, x: Tensor) -> Tensor:
        logits = self.body(x.double() if x.is_floating_point() else x).logits
        return logits[:, -1] if self.last else logits


def built(kind: str, config: str, *, last: bool = False, **options: Any) -> nn.Module:
    """A model in float64, so that the engines differ by little, and without dropout, which is random."""
    transformers = extra("transformers")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        settings = getattr(transformers, config)(**options)
        return Logits(getattr(transformers, kind)(settings), last=last).double()


def vit() -> nn.Module:
    return built(
        "ViTForImageClassification", "ViTConfig", hidden_size=16, image_size=16, patch_size=8,
        num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **WIDTHS,
    )  # fmt: skip


def resnet() -> nn.Module:
    return built(
        "ResNetForImageClassification", "ResNetConfig", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
        layer_type="basic", num_labels=CLASSES,
    )  # fmt: skip


def mobilenet() -> nn.Module:
    return built(
        "MobileNetV2ForImageClassification", "MobileNetV2Config", depth_multiplier=0.25, image_size=32,
        num_labels=CLASSES, classifier_dropout_prob=0.0,
    )  # fmt: skip


def bert() -> nn.Module:
    return built(
        "BertForSequenceClassification", "BertConfig", hidden_size=16, num_labels=CLASSES,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **TEXT, **WIDTHS,
    )  # fmt: skip


def distilbert() -> nn.Module:
    return built(
        "DistilBertForSequenceClassification", "DistilBertConfig", n_layers=2, n_heads=2, dim=16,
        hidden_dim=32, num_labels=CLASSES, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
        **TEXT,
    )  # fmt: skip


def llama() -> nn.Module:
    return built(
        "LlamaForCausalLM", "LlamaConfig", last=True, hidden_size=16, use_cache=False, pad_token_id=0, **TEXT,
        **WIDTHS,
    )  # fmt: skip


def gpt2() -> nn.Module:
    return built(
        "GPT2LMHeadModel", "GPT2Config", last=True, vocab_size=TOKENS, n_positions=16, n_embd=16, n_layer=2,
        n_head=2, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip


def untied_gpt2() -> nn.Module:
    return untie(gpt2())


IMAGE, BIG_IMAGE, TEXT_ROW = (3, 16, 16), (3, 32, 32), (LENGTH,)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    # name: model, shape of a sample, number of layers
    "ViT": (vit, IMAGE, 14),
    "ResNet": (resnet, IMAGE, 12),
    "MobileNetV2": (mobilenet, BIG_IMAGE, 95),
    "BERT": (bert, TEXT_ROW, 18),
    "DistilBERT": (distilbert, TEXT_ROW, 17),
    "Llama": (llama, TEXT_ROW, 7),
    "GPT-2": (untied_gpt2, TEXT_ROW, 12),
}


def samples(shape: tuple[int, ...], count: int = 36) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if shape == TEXT_ROW:
        return torch.randint(1, TOKENS, (count, *shape), generator=generator)
    return torch.randn(count, *shape, generator=generator)


def data(shape: tuple[int, ...]) -> Dataset:
    x = samples(shape)
    y = torch.arange(len(x)) % CLASSES
    return Dataset.of_arrays("made up", x[:30], y[:30], x[30:], y[30:])


@pytest.mark.parametrize("name", CASES)
def test_it_is_cut_equals_the_original_is_trained_and_loaded_back(name: str) -> None:
    make, shape, layers = CASES[name]
    module, x = make().eval(), samples(shape, 5)
    chain = layered(module, x[:2])
    assert len(chain) == layers, chain.names
    torch.testing.assert_close(chain.eval()(x), module(x))
    losses, weights = [], {}
    for engine in ("simulated", "reference"):
        training = simulate(
            copy.deepcopy(module),
            data(shape),
            unequal_fleet(DEVICES),
            strategy="b=4+cut=3",
            interval=2,
            optimizer="adam",
            learning_rate=1e-3,
            goal=Goal(rounds=4),
            machine=Machine(engine=engine),
        )
        losses.append([record.loss for record in training])
        weights = training.model()
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    fresh = make()
    fresh.load_state_dict(weights)
    assert any(not torch.equal(weights[key], tensor) for key, tensor in module.state_dict().items())


def test_a_tied_head_is_named_with_the_way_out() -> None:
    message = r"body.transformer.wte.weight and body.lm_head.weight are one weight.*hasfl.untie\(module\)"
    with pytest.raises(ModelError, match=message):
        layered(gpt2(), samples(TEXT_ROW, 2))
