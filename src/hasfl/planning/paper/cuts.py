"""The paper's cuts, P2: a mixed-integer linear fractional program (Eq. 53), as arrays for HiGHS.

Dinkelbach turns the ratio into a few mixed-integer linear programs over μ and T₁ to T₆, constraints C2 to
C4 and R1 to R8. For batch sizes that are given, this is exact to the solver's gap.
"""

import math
import time
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack, kron, vstack

from hasfl.arrays import FloatN, IntN
from hasfl.errors import Infeasible
from hasfl.planning.paper.dinkelbach import RatioMinimum, minimise_ratio
from hasfl.planning.paper.quiet_solver import quiet_solver
from hasfl.planning.tables import CostTables
from hasfl.theory.bound import Corollary1
from hasfl.theory.rounds import Floats

AUXILIARIES = 6  # T₁ to T₆
TIME_IS_UP = 1  # SciPy's status for a limit reached
LONGEST = 1e6  # seconds; HiGHS wants a number
LEAST_MARGIN = 1e-9  # of the most margin, that cuts must leave


@dataclass(frozen=True, slots=True, eq=False)
class CutProgram:
    """P2 for given batch sizes: num = T₃ + T₄ + Σ b C μ + (T₅ + T₆)/I, den = (most margin) − T₁.

    T₁ is the margin lost beyond the first cut, as a share of the most margin; T₂ counts in whole models;
    T₃ to T₆ are seconds.
    """

    tables: CostTables
    law: Corollary1
    batch_sizes: FloatN
    deadline: float = math.inf  # on the monotonic clock

    def solve(self, start: float) -> RatioMinimum[IntN]:
        """The best cuts, beginning with the ratio of a plan that is known.

        Raises TimeoutError if time runs out before the solver has any.
        """
        return minimise_ratio(self._minimise_difference, start=start, rtol=1e-7)

    def _minimise_difference(self, q: float) -> tuple[IntN, float, float]:
        devices, layers = self.tables.up_seconds.shape
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        per_auxiliary = [q * self._most_margin(), 0.0, 1.0, 1.0, *[1 / self.tables.interval] * 2]
        cost = np.concatenate([self._server_cost().ravel(), per_auxiliary])
        scale = float(np.abs(cost).max())
        with quiet_solver():
            result = milp(
                cost / scale,
                integrality=np.repeat([1, 0], [devices * layers, AUXILIARIES]),
                bounds=self._bounds(),
                constraints=self._constraints(),
                options={"mip_rel_gap": 1e-6, "time_limit": min(left, LONGEST)},
            )
        if result.x is None and result.status == TIME_IS_UP:
            raise TimeoutError(result.message)
        if result.x is None:
            raise Infeasible(f"no cuts fit these batch sizes (C1 or C4): the solver says {result.message!r}")
        mu = result.x[: devices * layers].reshape(devices, layers)
        cuts = mu.argmax(axis=1) + 1
        seconds = float(self.tables.round_seconds(self.batch_sizes, cuts))
        return cuts, seconds, self._most_margin() * (1 - float(self._lost_margin()[cuts.max() - 1]))

    def _server_cost(self) -> Floats:
        return self.batch_sizes[:, None] * self.tables.server_seconds

    def _lost_margin(self) -> Floats:
        """How much less margin each deepest cut has than the first, as a share of the most margin.

        Deeper cuts drift more. Single samples cost more from the first batch norm on.
        """
        return (self._most_margin() - self._margin_upto()) / self._most_margin()

    def _most_margin(self) -> float:
        """ε − drift − sampling if every device cuts after the first layer."""
        return float(self._margin_upto()[0])

    def _margin_upto(self) -> Floats:
        """ε − drift − sampling for each deepest cut."""
        deepest_cut = np.arange(1, len(self.law.margin_upto) + 1)
        plans = np.broadcast_to(self.batch_sizes, (len(deepest_cut), len(self.batch_sizes)))
        return self.law.margin_upto - self.law.bound.per_noise * self.law.noise.total(plans, deepest_cut)

    def _bounds(self) -> Bounds:
        """μ is 0 where a cut does not fit into memory (C4) or leaves no margin (C1)."""
        fits = self.tables.largest_batch >= self.batch_sizes[:, None]
        trains = self.batch_sizes.min() >= self.tables.smallest_batch_upto
        reaches = trains & (self._lost_margin() <= 1 - LEAST_MARGIN)
        upper = np.concatenate([(fits & reaches).ravel().astype(float), [1.0, *[np.inf] * 5]])
        return Bounds(np.zeros_like(upper), upper)

    def _constraints(self) -> list[LinearConstraint]:
        """C3, then R1 to R8 with everything on the left: row · (μ, T) ≤ 0."""
        tables, b = self.tables, self.batch_sizes[:, None]
        devices, layers = tables.up_seconds.shape
        seconds = max(float(tables.submodel_bits[-1]), 1.0)
        bits = np.broadcast_to(tables.submodel_bits / seconds, (devices, layers))
        rows = [
            self._per_device(np.broadcast_to(self._lost_margin(), (devices, layers)), 0),  # R1
            self._per_device(bits, 1),  # R2
            self._per_device(b * tables.up_seconds, 2),  # R3
            self._per_device(b * tables.down_seconds, 3),  # R4
            self._per_device(bits * seconds / tables.fed_up_rate[:, None], 4),  # R5
            self._server_share(bits, seconds / tables.server_fed_up_rate, 4),  # R6
            self._per_device(bits * seconds / tables.fed_down_rate[:, None], 5),  # R7
            self._server_share(bits, seconds / tables.server_fed_down_rate, 5),  # R8
        ]
        one_each = hstack(
            [kron(eye_array(devices), np.ones((1, layers))), csr_array((devices, AUXILIARIES))], format="csr"
        )
        return [
            LinearConstraint(one_each, 1, 1),  # C3
            LinearConstraint(vstack(rows, format="csr"), -np.inf, 0),
        ]

    def _per_device(self, weight: Floats, auxiliary: int) -> csr_array:
        """For each device, Σ_j weight_ij μ_ij − T ≤ 0."""
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

    def _server_share(self, bits: Floats, seconds: float, auxiliary: int) -> csr_array:
        """(N T₂ − Σ_ij μ_ij δ_j) / r − T ≤ 0."""
        right = np.zeros(AUXILIARIES)
        right[1], right[auxiliary] = len(bits) * seconds, -1.0
        return csr_array(np.concatenate([-seconds * bits.ravel(), right])[None])
