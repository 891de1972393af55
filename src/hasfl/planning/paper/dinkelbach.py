"""Minimise a ratio by minimising a few differences (Dinkelbach 1967). Independent of the rest of hasfl."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

X = TypeVar("X")

RTOL = 1e-9  # of the ratio; far above rounding errors, far below any gap of a planner; chosen by hand
MAX_ITERATIONS = 50  # chosen by hand: Newton's method converges quadratically near the least ratio


@dataclass(frozen=True, slots=True)
class RatioMinimum(Generic[X]):
    """The x that minimises a ratio num(x) / den(x), and the residual that proves it."""

    argmin: X
    ratio: float
    iterations: int
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
    for iteration in range(1, max_iterations + 1):
        x, num, den = minimise_difference(q)
        if den <= 0:
            raise ValueError(f"den(x) = {den:.3g} at q = {q:.3g}: the subproblem must keep it above 0")
        residual = num - q * den
        q = num / den
        if residual >= -rtol * abs(num):
            return RatioMinimum(x, q, iteration, residual)
    raise RuntimeError(f"ratio {q:.6g} not settled after {max_iterations} steps (residual {residual:.2e})")
