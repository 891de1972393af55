"""What a law of rounds proves about Θ: never too much, and for a single plan exactly Θ.

A plan is a point (T, S) here: the seconds of a round, and the noise of all batches. So Θ = R(S) T.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.theory.bound import Corollary1, Theorem1
from hasfl.theory.rounds import BatchNoise, Floats, Lines, MeasuredRounds, RoundsLaw

LAYERS = 3
NOISE = BatchNoise(np.ones(LAYERS))
ROUNDOFF = 1e-9


@dataclass(frozen=True)
class Points:
    """Some plans with the same deepest cut, under one law."""

    law: RoundsLaw
    deepest_cut: int
    seconds: Floats
    noise: Floats

    @property
    def values(self) -> Floats:
        return self.law.rounds_at(self.noise, self.deepest_cut) * self.seconds

    @property
    def slopes(self) -> Floats:
        return self.law.slope(self.seconds, self.noise, self.deepest_cut)

    def proved(
        self, value: float, low: float, high: float, *, share: float = 1.0, lost: float = 0.0
    ) -> float:
        """What the line for a range of slopes proves from lower bounds on its left side and on T.

        The least T is known up to the factor `share`, the least left side up to a loss.
        """
        lines: Lines = self.law.lines(value, self.deepest_cut, np.array([low]), np.array([high]))
        left = lines.per_second * self.seconds + lines.per_noise * self.noise
        reached = left.min() - lost * float(lines.whole[0])
        least = lines.per_second * self.seconds.min() * share
        return float(self.law.proved(value, lines, reached=np.array([reached]), least=least)[0])


def magnitudes(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(np.log10(low), np.log10(high)).map(lambda exponent: float(10**exponent))


def upto(most: float) -> st.SearchStrategy[Floats]:
    """Sums over the private layers, for each deepest cut."""
    return st.lists(st.floats(0, most), min_size=LAYERS, max_size=LAYERS).map(np.cumsum)


@st.composite
def points(draw: st.DrawFn, most: int = 6, *, curved: bool = True) -> Points:
    size = draw(st.integers(1, most))
    shares = draw(st.lists(st.floats(0.01, 0.95), min_size=size, max_size=size))
    noise, deepest_cut = np.array(shares) * draw(magnitudes(0.1, 100)), draw(st.integers(1, LAYERS))
    seconds = draw(st.lists(magnitudes(1e-2, 1e2), min_size=size, max_size=size))
    if draw(st.booleans()):
        sampling = draw(magnitudes(1e-2, 1e2))
        per_noise = sampling * (1 + draw(upto(3)))
        curvature = draw(magnitudes(1e-3, 10)) if curved else 0.0
        law: RoundsLaw = MeasuredRounds(
            endless=draw(magnitudes(1e-3, 1e5)),
            fixed_upto=1 + draw(upto(3)),
            per_noise_upto=per_noise,
            per_square_upto=curvature * per_noise**2,
            sampling=sampling,
            sampling_square=curvature * sampling**2,
            noise=NOISE,
        )
    else:
        of_bound, drift = draw(magnitudes(1e-3, 1e3)), draw(upto(3))
        bound = Theorem1(
            scale=draw(magnitudes(1e-3, 1e5)),
            per_noise=of_bound,
            drift_upto=drift,
            steepness=0.5,
            learning_rate=0.1,
            noise=NOISE,
        )
        # The target lies above the floor, so Θ is finite; it may lie far above it.
        most_noise = float(noise.max()) / max(shares)
        law = Corollary1(bound, float(drift[deepest_cut - 1]) + of_bound * most_noise)
    return Points(law, deepest_cut, np.array(seconds), noise)


FACTORS = magnitudes(0.01, 100)  # of the value that is to be proved, over Θ


@given(points(most=1, curved=False), FACTORS, magnitudes(1, 10), st.booleans())
def test_of_one_plan_exactly_its_objective_is_proved(
    plan: Points, factor: float, width: float, at_low_end: bool
) -> None:
    """At both ends of a range of slopes the line is exact."""
    objective, slope = float(plan.values[0]), float(plan.slopes[0])
    value = objective * factor
    low, high = (slope, slope * width) if at_low_end else (slope / width, slope)
    assert plan.proved(value, low, high) == pytest.approx(min(value, objective), rel=ROUNDOFF)


@given(points(most=1))
def test_the_line_of_one_slope_is_exact_for_a_plan_with_the_value(plan: Points) -> None:
    """With curvature too, because the tangent touches where this plan is."""
    objective, slope = float(plan.values[0]), float(plan.slopes[0])
    assert plan.proved(objective, slope, slope) == pytest.approx(objective, rel=ROUNDOFF)


@given(points(), FACTORS, magnitudes(1, 10), magnitudes(1, 10), magnitudes(0.1, 1), st.floats(0, 10))
def test_no_more_than_the_least_objective_is_proved(
    plans: Points, factor: float, below: float, above: float, share: float, lost: float
) -> None:
    least = float(plans.values.min())
    value = least * factor
    low, high = float(plans.slopes.min()) / below, float(plans.slopes.max()) * above
    proved = plans.proved(value, low, high, share=share, lost=lost)
    assert 0 <= proved <= min(value, least) * (1 + ROUNDOFF)


@given(points(), magnitudes(1, 100), magnitudes(0.01, 1), magnitudes(0.01, 1))
def test_better_plans_have_slopes_in_the_range(
    plans: Points, factor: float, of_seconds: float, of_noise: float
) -> None:
    value = float(plans.values.min()) * factor
    least = {
        "least_seconds": plans.seconds.min(keepdims=True) * of_seconds,
        "least_noise": plans.noise.min(keepdims=True) * of_noise,
    }
    low, high = plans.law.slopes(value, plans.deepest_cut, **least)
    better = plans.slopes[plans.values < value]
    assert (better >= low / (1 + ROUNDOFF)).all()
    assert (better <= high * (1 + ROUNDOFF)).all()


@given(points(most=1), magnitudes(0.01, 1))
def test_both_ends_of_the_range_of_slopes_are_attained(plan: Points, share: float) -> None:
    """The plan with the least noise has the least slope, the plan with the least seconds the largest."""
    value, seconds, noise = float(plan.values[0]), plan.seconds, plan.noise
    low, _ = plan.law.slopes(value, plan.deepest_cut, least_seconds=seconds * share, least_noise=noise)
    _, high = plan.law.slopes(value, plan.deepest_cut, least_seconds=seconds, least_noise=noise * share)
    assert low == pytest.approx(plan.slopes, rel=ROUNDOFF)
    assert high == pytest.approx(plan.slopes, rel=ROUNDOFF)
