"""The paper's batch sizes, P1: a stationary point by Newton-Jacobi, then Proposition 1 (Eqs. 46-50).

T₃ and T₄ are fixed while the batch sizes move, so they cannot outgrow the round they started in.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from hasfl.arrays import FloatN, IntN
from hasfl.planning.tables import CostTables
from hasfl.theory.bound import Corollary1
from hasfl.theory.rounds import BatchNoise

MAX_ITERATIONS, TOLERANCE = 200, 1e-10
TINY = 1e-300  # keeps a quotient of two zeros at zero


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchProblem:
    """P1 with the constants of Proposition 1: Θ′(b) = scale · (Σ b C + D) / (A − Σ B/b)."""

    margin_without_sampling: float  # A
    sampling_per_noise: float  # B
    server_seconds_per_sample: FloatN  # C_i
    fixed_seconds: float  # D = T₃ + T₄ + (T₅ + T₆)/I
    largest_batch: FloatN  # κ_i
    smallest_batch: float  # 1 in the paper; 2 where a private layer cannot train on a single sample
    noise: BatchNoise  # 1/b in the paper
    deepest_cut: int

    @classmethod
    def of(
        cls, tables: CostTables, law: Corollary1, cuts: IntN, *, up: float, down: float, aggregation: float
    ) -> "BatchProblem":
        """P1 for these cuts when T₃ is `up`, T₄ is `down` and (T₅ + T₆)/I is `aggregation`."""
        i, j = np.arange(len(cuts)), cuts - 1
        by_time = np.minimum(up * tables.up_rate[i, j], down * tables.down_rate[i, j]) * (1 + 1e-12)
        return cls(
            margin_without_sampling=float(law.margin_upto[j.max()]),
            sampling_per_noise=law.bound.per_noise,
            server_seconds_per_sample=tables.server_seconds[j],
            fixed_seconds=up + down + aggregation,
            largest_batch=np.minimum(tables.largest_batch[i, j], by_time),
            smallest_batch=float(tables.smallest_batch_upto[j.max()]),
            noise=law.noise,
            deepest_cut=int(cuts.max()),
        )

    def seconds(self, b: FloatN) -> float:
        """Σ b C + D."""
        return float(b @ self.server_seconds_per_sample) + self.fixed_seconds

    def margin(self, b: FloatN) -> float:
        """A − Σ B/b, for batch sizes that need not be whole; at 0 or below the target is out of reach."""
        return self.margin_without_sampling - self.sampling_per_noise * float((1 / b).sum())

    def value(self, b: FloatN) -> float:
        """Θ′ up to the factor 2ϑ/γ, by the law of rounds: single samples may have a price."""
        noise = float(self.noise.total(b, self.deepest_cut))
        margin = self.margin_without_sampling - self.sampling_per_noise * noise
        return self.seconds(b) / margin if margin > 0 else np.inf


@dataclass(frozen=True, slots=True, eq=False)
class StationaryPoint:
    """Where every derivative of Θ′ vanishes that can, b̂."""

    batch_sizes: FloatN
    iterations: int
    residual: float  # the largest |Ξ_i|, relative to its two terms


def stationary_batches(problem: BatchProblem, start: FloatN) -> StationaryPoint:
    """Solve Ξ_i(b) = C_i (A − Σ B/b) − (Σ b C + D) B/b_i² = 0 for all i by Newton-Jacobi, Eq. (49).

    Every device takes Newton's step in its own b_i at once, with ∂Ξ_i/∂b_i = (Σ b C + D) 2B/b_i³. A step
    is halved while it would leave the region where the target can be reached. Where a device costs the
    server nothing, b̂_i has no end and is left at its limit.
    """
    B, C = problem.sampling_per_noise, problem.server_seconds_per_sample
    if B == 0:  # no noise: the fewer samples the better
        return StationaryPoint(np.zeros_like(start), 0, 0.0)
    endless = C * problem.largest_batch <= 1e-15 * problem.fixed_seconds
    b = np.where(endless, np.maximum(problem.largest_batch, 1.0), start)
    if problem.margin(b) <= 0:
        raise ValueError("the batch sizes to start from must reach the target")
    residual, iterations = np.inf, 0
    while residual > TOLERANCE and iterations < MAX_ITERATIONS:
        iterations += 1
        seconds, margin = problem.seconds(b), problem.margin(b)
        gain, cost = seconds * B / b**2, C * margin
        residual = float((np.abs(cost - gain) / np.maximum(cost + gain, TINY))[~endless].max(initial=0.0))
        step = np.where(endless, 0.0, (cost - gain) * b / np.maximum(2 * gain, TINY))
        step = np.clip(step, -0.5 * b, 0.5 * b)
        while problem.margin(b - step) <= 0:
            step = step / 2
        b = b - step
    return StationaryPoint(b, iterations, residual)


def proposition_1(problem: BatchProblem, stationary: FloatN) -> FloatN:
    """Round b̂ to whole numbers within [1, ⌊κ⌋], device by device, Eq. (48).

    Where single samples have a price, which b̂ does not know of, 2 is tried beside 1.
    """
    most = np.maximum(np.floor(problem.largest_batch), problem.smallest_batch)
    b = np.clip(stationary, problem.smallest_batch, most)
    priced = problem.noise.single_upto[problem.deepest_cut - 1] > 1
    for i in np.flatnonzero((b != np.floor(b)) | (priced & (b == 1) & (most >= 2))):
        tried = []
        for whole in (np.floor(b[i]), np.ceil(b[i]) if b[i] > 1 else 2.0):
            other = b.copy()
            other[i] = whole
            tried.append((problem.value(other), whole))
        b[i] = min(tried)[1]
    return b


def exhaustive_batches(problem: BatchProblem, stationary: FloatN) -> FloatN:
    """The Remark's search: every device takes 1, ⌊b̂⌋, ⌈b̂⌉ or ⌊κ⌋, all combinations. For small N.

    2 is among them too, because single samples may have a price.
    """
    least = problem.smallest_batch
    most = np.maximum(np.floor(problem.largest_batch), least)
    within = np.clip(stationary, least, most)
    options = [
        sorted({least, float(low), float(high), float(top), min(least + 1, float(top))})
        for low, high, top in zip(np.floor(within), np.ceil(within), most, strict=True)
    ]
    return np.array(min(itertools.product(*options), key=lambda b: problem.value(np.array(b))))
