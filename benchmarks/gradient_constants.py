"""Measure the constants of the paper's bound on a real network, and print them as a [constants] section.

    python benchmarks/gradient_constants.py cifar10.npz

VGG-16 with batch norm is trained on the images of the file (x_train, N x 32 x 32 x 3, and y_train), by plain
SGD on batches of 320. Then the constants are measured:

σ²_j   the variance of a gradient over batches of 16, times 16, for each layer
β      eight devices train alone for 15 rounds, as in Wang et al. 2019. β is the difference of a device's
       gradient between its own and the mean weights, divided by the distance of these weights.
G²_j   chosen so that 4 γ² I² G²_j is the measured squared distance in layer j. Lemma 1 bounds this distance
       with the second moment of the gradient itself; that bound is some sixty times larger than the distance.
ϑ      the loss before training; the least possible loss is taken as 0
ε      twice the value to which the bound falls after endless rounds, for 20 devices, b = 16 and cut 4
"""

import argparse
import copy

import numpy as np
import torch
from torch import Tensor, nn

from hasfl.models.layered_model import LayeredModel
from hasfl.models.networks import vgg16

LEARNING_RATE, INTERVAL, BATCH, DEVICES = 0.05, 15, 16, 8
ROUNDS, TRAINING_BATCH = 600, 320  # rounds and batch size of the training before the measurement
VARIANCE_BATCHES = 400  # number of batches over which the variance is taken
SMOOTHNESS_SAMPLES = 512  # samples of each device for β
LOSS_SAMPLES = 2000  # samples for ϑ
TARGET_DEVICES, TARGET_CUT = 20, 4  # number of devices and cut for which ε is computed
PIXEL_MEAN, PIXEL_DEVIATION = 0.47, 0.25  # mean and deviation of the pixels of CIFAR-10, rounded


class Images:
    def __init__(self, path: str, device: str) -> None:
        with np.load(path) as data:
            x = torch.from_numpy(data["x_train"]).permute(0, 3, 1, 2)
            self.x = ((x.float() / 255 - PIXEL_MEAN) / PIXEL_DEVIATION).to(device)
            self.y = torch.from_numpy(data["y_train"]).long().to(device)

    def sample(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        indices = torch.randint(len(self.x), (size,), generator=generator).to(self.x.device)
        return self.x[indices], self.y[indices]


def gradients(model: LayeredModel, x: Tensor, y: Tensor) -> list[Tensor]:
    """The gradient of the mean loss as one vector for each layer."""
    loss = nn.functional.cross_entropy(model(x), y)
    by_weight = iter(torch.autograd.grad(loss, list(model.parameters())))
    return [
        torch.cat([next(by_weight).reshape(-1) for _ in layer.parameters()])
        for layer in model.layers.values()
    ]


def weights(model: LayeredModel) -> list[Tensor]:
    """The weights as one vector for each layer."""
    return [
        torch.cat([p.detach().reshape(-1) for p in layer.parameters()]) for layer in model.layers.values()
    ]


def train(model: LayeredModel, images: Images, *, rounds: int, batch: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
    for _ in range(rounds):
        x, y = images.sample(batch, generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def variances(model: LayeredModel, images: Images, *, batches: int = VARIANCE_BATCHES) -> list[float]:
    """The variance σ²_j of the gradient of each layer."""
    generator = torch.Generator().manual_seed(2)
    sums: list[Tensor] = []
    squares = [0.0] * len(model)
    for _ in range(batches):
        newest = gradients(model, *images.sample(BATCH, generator))
        sums = [total + g for total, g in zip(sums, newest, strict=True)] if sums else newest
        squares = [total + float(g.square().sum()) for total, g in zip(squares, newest, strict=True)]
    return [
        BATCH * (square - float(total.square().sum()) / batches) / (batches - 1)
        for square, total in zip(squares, sums, strict=True)
    ]


def drift_and_smoothness(model: LayeredModel, images: Images) -> tuple[list[float], float]:
    """The mean squared distance of devices from their mean, for each layer, and β."""
    local = [copy.deepcopy(model) for _ in range(DEVICES)]
    for i, device in enumerate(local):
        train(device, images, rounds=INTERVAL, batch=BATCH, seed=100 + i)
    mean = copy.deepcopy(model)
    with torch.no_grad():
        for p, *own in zip(mean.parameters(), *(d.parameters() for d in local), strict=True):
            p.copy_(torch.stack(own).mean(0))
    away = [[a - b for a, b in zip(weights(device), weights(mean), strict=True)] for device in local]
    drift = [float(torch.stack([d[j] for d in away]).square().sum(1).mean()) for j in range(len(model))]
    ratios = []
    for i, device in enumerate(local):
        x, y = images.sample(SMOOTHNESS_SAMPLES, torch.Generator().manual_seed(200 + i))
        change = [a - b for a, b in zip(gradients(device, x, y), gradients(mean, x, y), strict=True)]
        ratios.append(float(torch.cat(change).norm() / torch.cat(away[i]).norm()))
    return drift, float(np.median(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help=".npz with x_train and y_train")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    images = Images(parser.parse_args().data, device)
    model = vgg16().to(device)
    with torch.no_grad():
        x, y = images.sample(LOSS_SAMPLES, torch.Generator().manual_seed(3))
        loss = float(nn.functional.cross_entropy(model(x), y))
    train(model, images, rounds=ROUNDS, batch=TRAINING_BATCH, seed=1)
    drift, smoothness = drift_and_smoothness(model, images)
    variance = variances(model, images)
    moment = [d / (4 * (LEARNING_RATE * INTERVAL) ** 2) for d in drift]
    sampling = smoothness * LEARNING_RATE * sum(variance) / (TARGET_DEVICES * BATCH)
    print(f"smoothness = {smoothness:.3g}\ninitial_gap = {loss:.3g}")
    print("variance_of = [" + ", ".join(f"{v:.3g}" for v in variance) + "]")
    print("moment_of = [" + ", ".join(f"{g:.3g}" for g in moment) + "]")
    print(f"# target = {2 * (sampling + smoothness**2 * sum(drift[:TARGET_CUT])):.3g}")


if __name__ == "__main__":
    main()
