"""The cut sub-problem P2 of the paper, Eq. (53): a mixed-integer linear fractional program for HiGHS.

Dinkelbach's method turns the ratio into a few mixed-integer linear programs over μ and T₁ to T₆ with the
constraints C2 to C4 and R1 to R8. For fixed batch sizes the result is optimal up to the gap of HiGHS.
"""

import ctypes
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack, kron, vstack

from hasfl.arrays import FloatN, IntN
from hasfl.errors import Infeasible
from hasfl.planning.tables import CostTables
from hasfl.theory.bound import Corollary1
from hasfl.theory.rounds import Floats

# ── Dinkelbach's method (1967): the minimum of a ratio ───────────────────────────────────────────────────


X = TypeVar("X")

# Default relative error of the ratio: far above rounding errors, far below the gap of a planner; chosen by
# hand.
RTOL = 1e-9
MAX_ITERATIONS = 50  # most values of q; chosen by hand: Newton's method converges quadratically


@dataclass(frozen=True, slots=True)
class RatioMinimum(Generic[X]):
    """The x that minimises a ratio num(x) / den(x), and the residual that proves that x is the best."""

    argmin: X
    ratio: float
    residual: float  # min_x {num(x) − q·den(x)} for the last q; 0 if q is the least ratio


def minimise_ratio(
    minimise_difference: Callable[[float], tuple[X, float, float]],
    *,
    start: float,
    rtol: float = RTOL,
    max_iterations: int = MAX_ITERATIONS,
) -> RatioMinimum[X]:
    """Find the x that minimises num(x) / den(x), where den > 0.

    `minimise_difference(q)` returns the x that minimises num(x) − q·den(x), with num(x) and den(x). The
    minimum F(q) falls when q rises, and F(q) = 0 for the least ratio q. The next q is the ratio of the last
    x, which is Newton's step on F. The iteration ends when F(q) ≥ 0 up to `rtol`: then no x has a smaller
    ratio than q.
    """
    q, residual = start, float("nan")
    for _ in range(max_iterations):
        x, num, den = minimise_difference(q)
        if den <= 0:
            raise ValueError(f"den(x) = {den:.3g} at q = {q:.3g}: the subproblem must keep it above 0")
        residual = num - q * den
        q = num / den
        if residual >= -rtol * abs(num):
            return RatioMinimum(x, q, residual)
    raise RuntimeError(f"ratio {q:.6g} not settled after {max_iterations} steps (residual {residual:.2e})")


# ── HiGHS without messages on standard output ────────────────────────────────────────────────────────────


STANDARD_OUTPUT = 1  # file descriptor of standard output


@contextmanager
def quiet_solver() -> Iterator[None]:
    """Discard everything that is written to standard output inside the `with` block.

    HiGHS writes to the file descriptor directly and not to `sys.stdout`, so the descriptor is redirected.
    """
    sys.stdout.flush()
    libc, saved = ctypes.CDLL(None), os.dup(STANDARD_OUTPUT)
    try:
        with Path(os.devnull).open("w") as null_device:
            os.dup2(null_device.fileno(), STANDARD_OUTPUT)
            yield
            libc.fflush(None)  # the C library buffers too: empty its buffer before the descriptor is restored
    finally:
        os.dup2(saved, STANDARD_OUTPUT)
        os.close(saved)


# ── the cut sub-problem P2 ───────────────────────────────────────────────────────────────────────────────


AUXILIARIES = 6  # T₁ to T₆
T1, T2, T3, T4, T5, T6 = range(AUXILIARIES)  # indices of T₁ to T₆ behind μ in the vector of unknowns
TIME_IS_UP = 1  # status that SciPy's milp returns when a limit was reached
LONGEST = 1e6  # time limit of HiGHS if there is no deadline, seconds: HiGHS needs a number; chosen by hand
MIP_GAP = 1e-6  # relative gap that HiGHS must reach: its own tolerances are 1e-6 to 1e-7
RATIO_RTOL = 1e-7  # relative error of Dinkelbach's ratio: HiGHS does not resolve a smaller one
# A deepest cut is excluded if it leaves less than this share of the largest margin (C1). HiGHS cannot tell a
# smaller share from 0: its tolerances are 1e-6 to 1e-7. Chosen by hand.
LEAST_MARGIN = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class CutProgram:
    """P2 for fixed batch sizes: the ratio (T₃ + T₄ + Σ b C μ + (T₅ + T₆)/I) / (m (1 − T₁)).

    m is the largest margin ε − drift − sampling, that of cuts after the first layer. T₁ is the share of m
    that deeper cuts lose. T₂ is the largest sub-model as a share of the whole model. T₃ to T₆ are seconds.
    These units keep all unknowns within a few orders of magnitude, as HiGHS needs it.
    """

    tables: CostTables
    law: Corollary1
    batch_sizes: FloatN
    deadline: float = math.inf  # `time.monotonic()` at which the solver must stop

    def solve(self, start: float) -> RatioMinimum[IntN]:
        """The best cuts; `start` is the ratio of any plan, where Dinkelbach's method begins.

        Raises TimeoutError if the time is up before HiGHS has found any cuts.
        """
        return minimise_ratio(self._minimise_difference, start=start, rtol=RATIO_RTOL)

    def _minimise_difference(self, q: float) -> tuple[IntN, float, float]:
        """The cuts that minimise numerator − q · denominator, with their numerator and denominator."""
        devices, layers = self.tables.up_seconds.shape
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        # −q · m (1 − T₁) has the variable part q m T₁; T₂ costs nothing by itself.
        per_auxiliary = [q * self._most_margin(), 0.0, 1.0, 1.0, *[1 / self.tables.interval] * 2]
        per_cut = self.batch_sizes[:, None] * self.tables.server_seconds  # (N, L) b_i C_j
        cost = np.concatenate([per_cut.ravel(), per_auxiliary])
        largest_cost = float(np.abs(cost).max())
        with quiet_solver():
            result = milp(
                cost / largest_cost,
                integrality=np.repeat([1, 0], [devices * layers, AUXILIARIES]),
                bounds=self._bounds(),
                constraints=self._constraints(),
                options={"mip_rel_gap": MIP_GAP, "time_limit": min(left, LONGEST)},
            )
        if result.x is None and result.status == TIME_IS_UP:
            raise TimeoutError(result.message)
        if result.x is None:
            raise Infeasible(f"no cuts fit these batch sizes (C1 or C4): the solver says {result.message!r}")
        mu = result.x[: devices * layers].reshape(devices, layers)
        cuts = mu.argmax(axis=1) + 1
        seconds = float(self.tables.round_seconds(self.batch_sizes, cuts))
        return cuts, seconds, self._most_margin() * (1 - float(self._lost_margin()[cuts.max() - 1]))

    def _lost_margin(self) -> Floats:
        """(L,) The share of the largest margin that each deepest cut loses against the first.

        Deeper cuts have more drift. Single samples have a price once a private layer has batch norm.
        """
        return (self._most_margin() - self._margin_upto()) / self._most_margin()

    def _most_margin(self) -> float:
        """The largest margin m = ε − drift − sampling, that of plans with cut 1 on every device."""
        return float(self._margin_upto()[0])

    def _margin_upto(self) -> Floats:
        """(L,) The margin ε − drift − sampling for each deepest cut."""
        deepest_cut = np.arange(1, len(self.law.margin_upto) + 1)
        plans = np.broadcast_to(self.batch_sizes, (len(deepest_cut), len(self.batch_sizes)))
        return self.law.margin_upto - self.law.bound.per_noise * self.law.noise.total(plans, deepest_cut)

    def _bounds(self) -> Bounds:
        """The bounds of the unknowns.

        μ is at most 1 (C2). μ is 0 where a cut does not fit into memory (C4), leaves no margin (C1), or makes
        a layer private that cannot train on the smallest batch. T₁ is at most 1.
        """
        fits = self.tables.largest_batch >= self.batch_sizes[:, None]
        trains = self.batch_sizes.min() >= self.tables.smallest_batch_upto
        reaches = trains & (self._lost_margin() <= 1 - LEAST_MARGIN)
        unbounded = [np.inf] * (AUXILIARIES - 1)  # T₂ to T₆
        upper = np.concatenate([(fits & reaches).ravel().astype(float), [1.0, *unbounded]])
        return Bounds(np.zeros_like(upper), upper)

    def _constraints(self) -> list[LinearConstraint]:
        """The constraints C3, and R1 to R8 of Eq. (44) with all terms on the left side: row · (μ, T) ≤ 0."""
        tables, b = self.tables, self.batch_sizes[:, None]
        devices, layers = tables.up_seconds.shape
        model_bits = max(float(tables.submodel_bits[-1]), 1.0)  # a model without weights counts as one bit
        share = np.broadcast_to(tables.submodel_bits / model_bits, (devices, layers))  # δ_j / δ_L
        rows = [
            self._per_device(np.broadcast_to(self._lost_margin(), (devices, layers)), T1),  # R1
            self._per_device(share, T2),  # R2
            self._per_device(b * tables.up_seconds, T3),  # R3
            self._per_device(b * tables.down_seconds, T4),  # R4
            self._per_device(share * model_bits / tables.fed_up_rate[:, None], T5),  # R5
            self._server_share(share, model_bits / tables.server_fed_up_rate, T5),  # R6
            self._per_device(share * model_bits / tables.fed_down_rate[:, None], T6),  # R7
            self._server_share(share, model_bits / tables.server_fed_down_rate, T6),  # R8
        ]
        one_each = hstack(
            [kron(eye_array(devices), np.ones((1, layers))), csr_array((devices, AUXILIARIES))], format="csr"
        )
        return [
            LinearConstraint(one_each, 1, 1),  # C3
            LinearConstraint(vstack(rows, format="csr"), -np.inf, 0),
        ]

    def _per_device(self, weight: Floats, auxiliary: int) -> csr_array:
        """One row Σ_j weight_ij μ_ij − T ≤ 0 for each device i, where T is the given auxiliary unknown."""
        devices, layers = weight.shape
        row = np.repeat(np.arange(devices), layers)
        left = csr_array(
            (weight.ravel(), (row, np.arange(devices * layers))), shape=(devices, devices * layers)
        )
        right = csr_array(
            (-np.ones(devices), (np.arange(devices), np.full(devices, auxiliary))),
            shape=(devices, AUXILIARIES),
        )
        return hstack([left, right], format="csr")

    def _server_share(self, share: Floats, seconds: float, auxiliary: int) -> csr_array:
        """The row (N T₂ − Σ_ij μ_ij share_ij) · seconds − T ≤ 0: the edge server sends the middle parts.

        `seconds` is the time for the bits of a whole model.
        """
        right = np.zeros(AUXILIARIES)
        right[T2], right[auxiliary] = len(share) * seconds, -1.0
        return csr_array(np.concatenate([-seconds * share.ravel(), right])[None])
