"""The batch size sub-problem P1 of the paper: Newton-Jacobi, then Proposition 1 (Eqs. 46-52).

The cuts and T₃ to T₆ are fixed. So no batch size can exceed the limits that the fixed T₃ and T₄ set (R3, R4).
"""

import itertools
from dataclasses import dataclass

import numpy as np

from hasfl.arrays import FloatN, IntN
from hasfl.planning.tables import ROUNDING, CostTables
from hasfl.theory.bound import Corollary1
from hasfl.theory.rounds import BatchNoise

# Newton-Jacobi ends at a residual of TOLERANCE, or after MAX_ITERATIONS. Both chosen by hand: the tests
# demand a residual of 1e-9, and Newton's method converges quadratically.
TOLERANCE = 1e-10
MAX_ITERATIONS = 200
TINY = 1e-300  # least denominator, so that 0/0 gives 0; near the smallest float
LARGEST_STEP = 0.5  # largest Newton step as a share of b, so that b stays above 0; chosen by hand
# A device whose largest batch costs the edge server less than this share of the fixed seconds costs nothing:
# the cost would be lost in the rounding error of the sum (16 digits).
NEGLIGIBLE = 1e-15


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchProblem:
    """P1 with the constants A, B, C, D of Proposition 1: Θ′(b) = (2ϑ/γ) (Σ b C + D) / (A − Σ B/b)."""

    margin_without_sampling: float  # A = ε − drift term
    sampling_per_noise: float  # B = βγ Σ_j σ²_j / N²
    server_seconds_per_sample: FloatN  # C_i
    fixed_seconds: float  # D = T₃ + T₄ + (T₅ + T₆)/I
    largest_batch: FloatN  # κ_i, not rounded down
    smallest_batch: float  # 1 in the paper; 2 where a private layer cannot train on a single sample
    noise: BatchNoise  # n(b); 1/b in the paper
    deepest_cut: int

    @classmethod
    def of(
        cls, tables: CostTables, law: Corollary1, cuts: IntN, *, up: float, down: float, aggregation: float
    ) -> "BatchProblem":
        """P1 for these cuts when T₃ is `up`, T₄ is `down` and (T₅ + T₆)/I is `aggregation`."""
        i, j = np.arange(len(cuts)), cuts - 1
        by_time = np.minimum(up * tables.up_rate[i, j], down * tables.down_rate[i, j]) * ROUNDING  # R3, R4
        return cls(
            margin_without_sampling=float(law.margin_upto[j.max()]),
            sampling_per_noise=law.bound.per_noise,
            server_seconds_per_sample=tables.server_seconds[j],
            fixed_seconds=up + down + aggregation,
            largest_batch=np.minimum(tables.largest_batch[i, j], by_time),  # κ_i of Eq. (48)
            smallest_batch=float(tables.smallest_batch_upto[j.max()]),
            noise=law.noise,
            deepest_cut=int(cuts.max()),
        )

    def seconds(self, b: FloatN) -> float:
        """The seconds of a round, Σ b C + D."""
        return float(b @ self.server_seconds_per_sample) + self.fixed_seconds

    def margin(self, b: FloatN) -> float:
        """The margin A − Σ B/b, for real b. If it is not above 0, the target is out of reach."""
        return self.margin_without_sampling - self.sampling_per_noise * float((1 / b).sum())

    def value(self, b: FloatN) -> float:
        """The training time Θ′(b) without the factor 2ϑ/γ, for whole b.

        Single samples have the price of the law of rounds.
        """
        noise = float(self.noise.total(b, self.deepest_cut))
        margin = self.margin_without_sampling - self.sampling_per_noise * noise
        return self.seconds(b) / margin if margin > 0 else np.inf


@dataclass(frozen=True, slots=True, eq=False)
class StationaryPoint:
    """The real batch sizes b̂ at which every derivative ∂Θ′/∂b_i is 0."""

    batch_sizes: FloatN
    residual: float  # the largest |Ξ_i| over the sum of its two terms


def stationary_batches(problem: BatchProblem, start: FloatN) -> StationaryPoint:
    """Solve Ξ_i(b) = C_i (A − Σ B/b) − (Σ b C + D) B/b_i² = 0 for all i by Newton-Jacobi, Eq. (50).

    Newton-Jacobi takes Newton's step Ξ_i / (∂Ξ_i/∂b_i) in every b_i at the same time, with
    ∂Ξ_i/∂b_i = (Σ b C + D) 2B/b_i³. All steps are halved until the target is within reach again. If a device
    costs the edge server nothing (C_i = 0), Ξ_i is negative for every b_i: b̂_i is infinite, and b_i stays at
    its limit.
    """
    B, C = problem.sampling_per_noise, problem.server_seconds_per_sample
    if B == 0:  # no noise: Θ′ grows with every sample
        return StationaryPoint(np.zeros_like(start), 0.0)
    endless = C * problem.largest_batch <= NEGLIGIBLE * problem.fixed_seconds
    b = np.where(endless, np.maximum(problem.largest_batch, 1.0), start)
    if problem.margin(b) <= 0:
        raise ValueError("the batch sizes to start from must reach the target")
    residual, iterations = np.inf, 0
    while residual > TOLERANCE and iterations < MAX_ITERATIONS:
        iterations += 1
        seconds, margin = problem.seconds(b), problem.margin(b)
        gain, cost = seconds * B / b**2, C * margin  # Ξ_i = cost − gain
        residual = float((np.abs(cost - gain) / np.maximum(cost + gain, TINY))[~endless].max(initial=0.0))
        # Newton's step Ξ_i / (∂Ξ_i/∂b_i), with ∂Ξ_i/∂b_i = 2 gain / b_i.
        step = np.where(endless, 0.0, (cost - gain) * b / np.maximum(2 * gain, TINY))
        step = np.clip(step, -LARGEST_STEP * b, LARGEST_STEP * b)
        while problem.margin(b - step) <= 0:
            step = step / 2
        b = b - step
    return StationaryPoint(b, residual)


def proposition_1(problem: BatchProblem, stationary: FloatN) -> FloatN:
    """Round b̂ to whole numbers within [1, ⌊κ⌋], one device after the other, Eq. (48).

    b̂ ignores the price of single samples. So where single samples have a price, 2 is tried besides 1.
    """
    largest = np.maximum(np.floor(problem.largest_batch), problem.smallest_batch)
    b = np.clip(stationary, problem.smallest_batch, largest)
    priced = problem.noise.single_upto[problem.deepest_cut - 1] > 1
    for i in np.flatnonzero((b != np.floor(b)) | (priced & (b == 1) & (largest >= 2))):
        candidates = []
        for whole in (np.floor(b[i]), np.ceil(b[i]) if b[i] > 1 else 2.0):
            rounded = b.copy()
            rounded[i] = whole
            candidates.append((problem.value(rounded), whole))
        b[i] = min(candidates)[1]
    return b


def exhaustive_batches(problem: BatchProblem, stationary: FloatN) -> FloatN:
    """The best combination of 1, ⌊b̂⌋, ⌈b̂⌉ or ⌊κ⌋ for each device: the paper's Remark, for small N.

    2 is an option too, because single samples may have a price.
    """
    smallest = problem.smallest_batch
    largest = np.maximum(np.floor(problem.largest_batch), smallest)
    b = np.clip(stationary, smallest, largest)
    options = [
        sorted({smallest, float(low), float(high), float(top), min(smallest + 1, float(top))})
        for low, high, top in zip(np.floor(b), np.ceil(b), largest, strict=True)
    ]
    return np.array(min(itertools.product(*options), key=lambda b: problem.value(np.array(b))))
