"""Minimise a ratio by minimising a few differences (Dinkelbach 1967). Knows nothing of HASFL."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

X = TypeVar("X")


@dataclass(frozen=True, slots=True)
class RatioMinimum(Generic[X]):
    """The x that minimises a ratio, with its certificate."""

    argmin: X
    ratio: float
    iterations: int
    residual: float  # min_x {num(x) − ratio·den(x)}, zero at the optimum


def minimise_ratio(
    minimise_difference: Callable[[float], tuple[X, float, float]],
    *,
    start: float,
    rtol: float = 1e-9,
    max_iterations: int = 50,
) -> RatioMinimum[X]:
    """Find the x that minimises num(x) / den(x), where den > 0.

    `minimise_difference(q)` returns an x minimising num(x) − q·den(x), with its num and den. That minimum
    falls as q rises and is zero at the optimal ratio; taking for q the ratio of the last x is Newton's
    method on it. It ends when no x has a smaller ratio than q, up to `rtol`.
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
