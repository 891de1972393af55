"""How close training gets, and how many rounds it needs (Sec. IV, Theorem 1, Corollary 1). NumPy only."""

from dataclasses import dataclass

from hasfl.errors import TargetUnreachable
from hasfl.plan import Plan
from hasfl.profile import GradientStats


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundFloor:
    """The two terms of Theorem 1 that no number of rounds removes."""

    sampling: float  # noise of the mini-batches
    drift: float  # devices' sub-models moving apart between aggregations

    @property
    def total(self) -> float:
        """What the mean squared gradient cannot be guaranteed to fall below."""
        return self.sampling + self.drift


def bound_floor(plan: Plan, stats: GradientStats, *, learning_rate: float, interval: int) -> BoundFloor:
    """The floor of Theorem 1 under a plan.

    sampling = (βγ / N²) Σ_i Σ_j σ²_j / b_i            falls as any batch grows (Insight 1)
    drift    = 1{I > 1} 4 β² γ² I² Σ_{j ≤ L_c} G²_j    grows with the deepest cut (Insight 2)
    """
    beta, gamma = stats.smoothness, learning_rate
    inverse_batches = float((1 / plan.batch_sizes).sum()) / len(plan) ** 2
    client_moment = float(stats.moment_upto[plan.deepest_cut - 1])
    reach = beta * gamma * interval
    return BoundFloor(
        sampling=beta * gamma * float(stats.variance_of.sum()) * inverse_batches,
        drift=4 * reach * reach * client_moment if interval > 1 else 0.0,
    )


def default_target(plan: Plan, stats: GradientStats, *, learning_rate: float, interval: int) -> float:
    """A target that a plan can reach: twice its floor, so that there the rounds weigh as much as the floor.

    The paper does not say how it chose ε.
    """
    floor = bound_floor(plan, stats, learning_rate=learning_rate, interval=interval)
    return 2 * floor.total if floor.total > 0 else 1.0


def gradient_bound(
    plan: Plan, stats: GradientStats, *, learning_rate: float, interval: int, rounds: float
) -> float:
    """What the squared gradient is guaranteed to be at most, on average over `rounds` rounds.

    2ϑ / (γR) + sampling + drift                                                          Eq. (16)

    Theorem 1 asks for γ ≤ 1/β; beyond that the number says nothing.
    """
    floor = bound_floor(plan, stats, learning_rate=learning_rate, interval=interval)
    return 2 * stats.initial_gap / (learning_rate * rounds) + floor.total


def rounds_to_target(
    plan: Plan, stats: GradientStats, *, learning_rate: float, interval: int, target: float
) -> float:
    """Rounds after which the mean squared gradient is guaranteed to be at most `target`.

    R = 2ϑ / (γ (ε − sampling − drift))                        Eq. (27) taken as an equality

    Not rounded up: planners differentiate it.
    """
    floor = bound_floor(plan, stats, learning_rate=learning_rate, interval=interval)
    if target <= floor.total:
        larger_term = "enlarge the batches" if floor.sampling > floor.drift else "cut earlier"
        raise TargetUnreachable(
            f"target {target:.6g} does not lie above the floor {floor.total:.6g} of the bound (sampling "
            f"{floor.sampling:.3g}, drift {floor.drift:.3g} down to layer {plan.deepest_cut}): raise the "
            f"target, lower the learning rate {learning_rate:.3g}, or {larger_term}"
        )
    return 2 * stats.initial_gap / (learning_rate * (target - floor.total))
