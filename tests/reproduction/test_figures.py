"""Figures of experiments hold the right numbers, name what is missing, and are the same bytes every time."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import numpy as np
import pytest

from hasfl.planning.strategies.catalogue import STRATEGIES
from hasfl.profile import Profile
from hasfl.report.figures import save_figure
from hasfl.runs.model_costs import shipped_layers
from reproduction.bars import convergence
from reproduction.curves import seed_lines
from reproduction.experiment import Drawing, Experiment, Panel
from reproduction.figures import KINDS, draw
from reproduction.fixed_plans import grouped
from reproduction.look import KNOWN, STRONG, look
from reproduction.results import Results
from reproduction.trained import Reach, Trained
from tests.reproduction.sample_figures import (
    BATCHES,
    CUTS,
    PAPER,
    SAMPLES,
    SCALES,
    SEEDS,
    experiment,
    panel,
    run,
    runs_of,
)
from tests.reproduction.synthetic import seconds_until, synthetic

# The number of axes of each sample: two parts a panel in converged, a third in cut-and-overhead.
AXES = {
    "batch-and-latency": 2,
    "cut-and-overhead": 3,
    "curves": 4,
    "converged": 8,
    "time-against": 2,
    "ablation": 2,
    "bars": 2,
}
SMALLEST_TEXT = 7.0  # points


def texts(axes: Any) -> str:
    return "\n".join([axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)])


def drawn(made: Experiment, found: Results) -> Any:
    return draw(made, found).axes


def legend_of(figure: Any) -> list[str]:
    own = [axes.get_legend() for axes in figure.axes]
    return [text.get_text() for legend in [*figure.legends, *own] if legend for text in legend.get_texts()]


def one_point(made: Experiment) -> Panel:
    return made.panels[0]


def test_every_kind_has_a_sample_and_a_drawing() -> None:
    assert set(KINDS) == set(SAMPLES) == set(get_args(Drawing))


@pytest.mark.parametrize("kind", SAMPLES)
def test_every_kind_is_drawn_legibly_and_always_the_same(kind: str, tmp_path: Path) -> None:
    made = SAMPLES[kind]
    found = Results(runs_of(made))
    figure = draw(made, found)
    assert len(figure.axes) == AXES[kind]
    assert figure.get_suptitle() == "Fig. 5: made-up results"
    assert "not trained" not in "".join(map(texts, figure.axes))
    again = draw(made, found)
    for ending in (".svg", ".png"):
        save_figure(figure, tmp_path / f"first{ending}")
        save_figure(again, tmp_path / f"second{ending}")
        assert (tmp_path / f"first{ending}").read_bytes() == (tmp_path / f"second{ending}").read_bytes()
    from matplotlib.text import Text

    written = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in written) >= SMALLEST_TEXT


@pytest.mark.parametrize("kind", SAMPLES)
def test_without_results_every_panel_says_so(kind: str) -> None:
    figure = draw(SAMPLES[kind], Results())
    said = "".join(map(texts, figure.axes))
    assert said.count("not trained yet") == len(SAMPLES[kind].panels)


@pytest.mark.parametrize("kind", SAMPLES)
def test_what_was_not_trained_is_left_out_and_named(kind: str) -> None:
    made = SAMPLES[kind]
    absent, rare = one_point(made).strategies[1:3]
    kept = [
        each
        for each in runs_of(made)
        if each.strategy != absent and (each.strategy != rare or each.seed == 0)
    ]
    figure = draw(made, Results(kept))
    said = texts(figure.axes[0]) + "".join(part.get_supxlabel() for part in figure.subfigs)
    assert f"not trained: {absent}" in said
    assert f"only 1 of 3 seeds: {rare}" in said
    assert look(absent, one_point(made).strategies).name not in legend_of(figure)


def test_other_seeds_than_the_experiments_are_not_drawn() -> None:
    made = experiment("curves", panel("a", ("hasfl",)), seeds=(0,))
    found = Results(synthetic("a", "hasfl", seed) for seed in (0, 7))
    trained = Trained.of(made, one_point(made), found)
    assert [each.seed for each in trained.at(trained.panel.points[0])["hasfl"]] == [0]


def test_a_point_without_result_is_named() -> None:
    made = SAMPLES["time-against"]
    kept = [each for each in runs_of(made) if (each.scenario, each.strategy) != ("g-0.5", "rbs+rms")]
    axes = drawn(made, Results(kept))
    assert "not trained: rbs+rms at 0.5" in texts(axes[0])
    assert "not trained" not in texts(axes[1])


def test_curves_mark_when_the_accuracy_was_reached() -> None:
    """By the closed form of the made-up curve; an evaluation every 10 s rounds up."""
    made = experiment("curves", panel("a", ("hasfl", "rbs+rms"), accuracy=0.7), seeds=(0,))
    runs = [
        synthetic("a", "hasfl", speed=2, every=1, evaluations=400),
        synthetic("a", "rbs+rms", ceiling=0.6, every=1, evaluations=400),
    ]
    (axes,) = drawn(made, Results(runs))
    curve, reached, other, ended, dotted = axes.get_lines()
    np.testing.assert_allclose(curve.get_xdata(), runs[0].clock)
    np.testing.assert_allclose(curve.get_ydata(), 100 * runs[0].accuracy, rtol=1e-5)
    assert reached.get_xdata()[0] == 10 * math.ceil(seconds_until(0.7, speed=2) / 10)
    assert reached.get_ydata()[0] == pytest.approx(70)
    assert (ended.get_xdata()[0], ended.get_markerfacecolor()) == (4000, "white")
    assert curve.get_linewidth() == STRONG > other.get_linewidth()
    assert [*dotted.get_ydata()] == pytest.approx([70, 70])
    assert "70 %" in texts(axes)


def test_without_an_accuracy_the_highest_that_all_reached_is_taken() -> None:
    made = experiment("curves", panel("a", ("hasfl", "rbs+rms"), accuracy=None), seeds=(0,))
    runs = [synthetic("a", "hasfl"), synthetic("a", "rbs+rms", ceiling=0.5)]
    (axes,) = drawn(made, Results(runs))
    assert f"{math.floor(200 * runs[1].best()) / 2:g} %" in texts(axes), "in steps of half a per cent"
    assert not [line for line in axes.get_lines() if line.get_markerfacecolor() == "white"]


def test_time_is_logarithmic_only_where_contestants_differ_widely() -> None:
    for factor, scale in ((9.0, "linear"), (11.0, "log")):
        made = experiment("curves", panel(f"x{factor:g}", ("hasfl", "fl"), accuracy=0.5), seeds=(0,))
        runs = [
            synthetic(f"x{factor:g}", "hasfl"),
            synthetic(f"x{factor:g}", "fl", speed=1 / factor, round_seconds=10 * factor),
        ]
        (axes,) = drawn(made, Results(runs))
        assert axes.get_xscale() == scale


def test_all_panels_of_curves_have_the_same_kind_of_axis() -> None:
    made = experiment("curves", *(panel(name, ("hasfl", "fl"), accuracy=0.5) for name in "ab"), seeds=(0,))
    alike = [synthetic("a", strategy) for strategy in ("hasfl", "fl")]
    apart = [synthetic("b", "hasfl"), synthetic("b", "fl", speed=0.05, round_seconds=200.0)]
    assert [axes.get_xscale() for axes in drawn(made, Results([*alike, *apart]))] == ["log", "log"]


def test_seeds_are_averaged_at_equal_times_not_at_equal_evaluations() -> None:
    """Both seeds rise by 1 % in 100 s, but are evaluated at other times: their mean is the same line."""
    times = (np.arange(100.0, 1001, 100), np.arange(150.0, 901, 50))
    pair = tuple(
        replace(
            synthetic("a", "hasfl", seed, evaluations=len(clock)),
            clock=clock,
            accuracy=clock / 1e4 + 0.1 * seed,
        )
        for seed, clock in enumerate(times)
    )
    at, lines = seed_lines(pair, "clock")
    assert (at[0], at[-1]) == (150, 900)
    assert {200.0, 250.0} <= set(at)
    np.testing.assert_allclose(lines.mean(axis=0), at / 1e4 + 0.05)


def test_seeds_without_a_common_time_are_drawn_all_the_same() -> None:
    made = experiment("curves", panel("a", ("hasfl",)), seeds=(0, 1))
    runs = [synthetic("a", "hasfl", evaluations=2), synthetic("a", "hasfl", 1, every=100, evaluations=2)]
    (axes,) = drawn(made, Results(runs))
    assert len(axes.get_lines()[0].get_xdata()) == 1


def test_bands_reach_from_the_lowest_to_the_highest_seed() -> None:
    made = experiment("curves", panel("a", ("hasfl",)))
    runs = [synthetic("a", "hasfl", seed, ceiling=0.7 + 0.05 * seed) for seed in SEEDS]
    (axes,) = drawn(made, Results(runs))
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    last = corners[corners[:, 0] == runs[0].seconds]
    assert last[:, 1].min() == pytest.approx(100 * runs[0].accuracy[-1], rel=1e-5)
    assert last[:, 1].max() == pytest.approx(100 * runs[2].accuracy[-1], rel=1e-5)


def test_reach_is_a_mean_of_seeds_or_a_lower_limit() -> None:
    runs = tuple(synthetic("a", "x", seed, speed=2.0**seed) for seed in (0, 1))
    ours = tuple(synthetic("a", "hasfl", seed, speed=2.0 ** (seed + 1)) for seed in (0, 1))
    reach, other = Reach.of(runs, 0.7), Reach.of(ours, 0.7)
    times = [each.seconds_to(0.7) or math.nan for each in (*runs, *ours)]
    assert reach.mean == fmean(times[:2])
    factor = math.sqrt(times[0] / times[2] * times[1] / times[3])
    assert reach.factor(other) == pytest.approx(factor)
    assert f"({factor:.2f} ×)" in reach.in_words(other)
    assert other.briefly(other) == other.in_words(other) == "12 min 30 s"
    low = (runs[0], synthetic("a", "x", 1, ceiling=0.5))
    assert Reach.of(low, 0.7).mean == fmean([times[0], low[1].seconds])
    assert Reach.of(low, 0.7).in_words(other) == "reached by 1 of 2 seeds"
    assert Reach.of(low, 0.7).factor(other) is None
    assert Reach.of(low[1:], 0.7).in_words(other) == "not reached in 1 h 06 min"
    assert Reach.of(low[1:], 0.7).briefly(other) == "> 1 h 06 min"


def test_bars_say_who_did_not_reach_the_accuracy() -> None:
    made = experiment("bars", panel("a", ("hasfl", "b=8+cut=2", "b=8+cut=4"), accuracy=0.6), seeds=(0,))
    runs = [
        synthetic("a", "hasfl"),
        synthetic("a", "b=8+cut=2", speed=0.5),
        synthetic("a", "b=8+cut=4", ceiling=0.5),
    ]
    (axes,) = drawn(made, Results(runs))
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == [runs[0].seconds_to(0.6), runs[1].seconds_to(0.6), runs[2].seconds]
    assert [bar.get_facecolor()[:3] == (1, 1, 1) for bar in axes.patches] == [False, False, True]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "hasfl (ours)",
        "b = 8, cut 2",
        "b = 8, cut 4",
    ]
    said = texts(axes)
    assert f"({widths[1] / widths[0]:.2f} ×)" in said
    assert "not reached in 1 h 06 min" in said


def test_bars_without_a_linear_axis_are_dots() -> None:
    made = experiment("bars", panel("a", ("hasfl", "fl"), accuracy=0.6), seeds=(0,))
    slow = synthetic("a", "fl", speed=0.05, round_seconds=200)
    (axes,) = drawn(made, Results([synthetic("a", "hasfl"), slow]))
    assert (axes.get_xscale(), len(axes.patches)) == ("log", 0)


def test_time_against_a_resource_is_the_time_to_the_accuracy() -> None:
    made = experiment("time-against", panel("a", PAPER, scales=SCALES))
    runs = runs_of(made)
    (axes,) = drawn(made, Results(runs))
    ours = axes.get_lines()[0]
    expected = [
        fmean(run(point, "hasfl", seed).seconds_to(0.7) or math.nan for seed in SEEDS)
        for point in one_point(made).points
    ]
    np.testing.assert_allclose(ours.get_xdata(), SCALES)
    np.testing.assert_allclose(ours.get_ydata(), expected)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.25", "0.5", "1", "2"]
    assert axes.get_ylabel() == "virtual time to 70 %"
    slow = [point for point in one_point(made).points if run(point, "rbs+rms", 0).seconds_to(0.7) is None]
    opened = [line for line in axes.get_lines() if line.get_markerfacecolor() == "white"]
    assert len(opened) >= len(slow) > 0


def test_converged_shows_best_accuracy_and_time_side_by_side() -> None:
    made = experiment("converged", panel("a", PAPER, accuracy=None), seeds=(0,))
    runs = runs_of(made)
    left, right = drawn(made, Results(runs))
    np.testing.assert_allclose(
        [bar.get_width() for bar in left.patches], [100 * each.best() for each in runs], rtol=1e-5
    )
    common = math.floor(200 * min(each.best() for each in runs)) / 2
    assert right.get_xlabel() == f"time (min) to {common:g} %"
    assert f"{100 * runs[0].best():.1f} %" in texts(left)


def test_convergence_is_the_papers_rule() -> None:
    flat = synthetic("a", "x", evaluations=12)
    flat = replace(flat, accuracy=np.array([0.1, 0.2, 0.3, *[0.5] * 9]))
    end = convergence((flat,))
    assert end is not None
    assert (end.seconds, end.accuracy) == (flat.clock[3 + 5], 0.5)
    rising = replace(flat, accuracy=np.arange(12) / 12)
    assert convergence((rising,)) is None
    assert convergence((flat, rising)) is None


def test_the_steps_of_a_round_add_up() -> None:
    made = SAMPLES["batch-and-latency"]
    runs = runs_of(made)
    _, right = drawn(made, Results(runs))
    tops = {bar.get_x(): 0.0 for bar in right.patches}
    for bar in right.patches:
        tops[bar.get_x()] += bar.get_height()
    expected = [sum(run(one_point(made).points[0], each, 0).phases.values()) for each in BATCHES]
    np.testing.assert_allclose([tops[x] for x in sorted(tops)], expected, rtol=1e-5)
    assert [tick.get_text() for tick in right.get_xticklabels()] == ["4", "8", "16", "32", "64"]


def test_unknown_steps_keep_their_name() -> None:
    groups = grouped({"device_forward": 1, "device_backward": 2, "reading_passes": 4, "new_step": 8})
    assert groups == {"devices compute": 3, "readings": 4, "new step": 8}


def test_overhead_of_cuts_is_that_of_the_layers_and_bits() -> None:
    made = SAMPLES["cut-and-overhead"]
    runs = runs_of(made)
    _, upper, lower = drawn(made, Results(runs))
    layers = shipped_layers("vgg16", classes=10, norm="batch")
    assert layers is not None
    profile = Profile.of(layers)
    flops = (profile.forward_flops_upto + profile.backward_flops_upto) / 1e9
    np.testing.assert_allclose([bar.get_height() for bar in upper.patches], flops[[1, 3, 7, 11]])
    bits = runs[0].bits  # of all 20 devices, with the cut 2
    sent = (bits["activation_upload"] + bits["gradient_download"]) / 20 / 1e6
    submodels = (bits["submodel_upload"] + bits["submodel_download"]) / 20 / 1e6
    assert [bar.get_height() for bar in lower.patches[:2]] == pytest.approx([sent, submodels])
    assert [tick.get_text() for tick in lower.get_xticklabels()] == [each.split("=")[-1] for each in CUTS]


def test_every_strategy_has_its_own_look() -> None:
    assert set(KNOWN) == set(STRATEGIES)
    lines = {(each.colour, each.dashes) for each in KNOWN.values()}
    assert len(lines) == len({each.marker for each in KNOWN.values()}) == len(KNOWN)
    assert all(each.width < STRONG for name, each in KNOWN.items() if name != "hasfl")


def test_fixed_plans_are_darker_the_larger_they_are() -> None:
    from matplotlib.colors import to_rgb

    for plans in (BATCHES, CUTS):
        brightness = [sum(to_rgb(look(each, plans).colour)) for each in plans]
        assert brightness == sorted(brightness, reverse=True)
        assert len(set(brightness)) == len(plans)


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        ("b=16+cut=8", "b = 16, cut 8"),
        ("habs+cut=8", "HABS, cut 8"),
        ("b=16+hams", "b = 16, HAMS"),
        ("rbs+cut=8", "RBS, cut 8"),
        ("fl:b=16", "FL, b = 16"),
        ("sl:b=16,cut=4", "SL, b = 16, cut 4"),
        ("my.module:plan", "my.module:plan"),
    ],
)
def test_names_are_for_people(strategy: str, name: str) -> None:
    assert look(strategy).name == name


def test_importing_and_drawing_need_neither_torch_nor_pyplot() -> None:
    code = """if True:
        import sys
        from reproduction.figures import draw
        from reproduction.results import Results
        assert "matplotlib" not in sys.modules
        from tests.reproduction.sample_figures import SAMPLES, runs_of
        for made in (SAMPLES["curves"], SAMPLES["cut-and-overhead"]):
            draw(made, Results(runs_of(made)))
        assert not {"torch", "matplotlib.pyplot"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", code], check=True)
