"""Pictures hold the right numbers, are drawn without global state and are written whole or not at all."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hasfl.errors import InputError, MissingExtra, StorageError
from hasfl.plan import Plan
from hasfl.report.figures import (
    accuracy_against_time,
    plan_over_time,
    race_picture,
    save_figure,
    who_holds_what,
)
from tests.report.runs import evaluated, no_file_above, raced, record

FLAT = [0.2, 0.5, *[0.6] * 6]
PNG = b"\x89PNG\r\n"


def cells_of(axes: Any) -> NDArray[np.float64]:
    (image,) = axes.get_images()
    return np.ma.filled(image.get_array().astype(np.float64), np.nan)


def test_a_line_per_strategy_in_units_that_fit() -> None:
    late = [*FLAT, 0.9]
    runs = {
        "hasfl": evaluated(late, every=2, seconds=600.0),
        "rbs+rms": evaluated([0.1, 0.3], seconds=7200.0),
    }
    figure = accuracy_against_time(runs, 0)
    (axes,) = figure.axes
    first, first_mark, second, second_mark, *_ = axes.get_lines()
    assert axes.get_xlabel() == "virtual time (h)"
    assert axes.get_xscale() == "linear"
    np.testing.assert_allclose(first.get_xdata(), np.arange(1, 10) / 3)
    np.testing.assert_allclose(first.get_ydata(), 100 * np.array(late))
    np.testing.assert_allclose(second.get_xdata(), [2.0, 4.0])
    np.testing.assert_allclose(np.ravel(first_mark.get_data()), [8 / 3, 60.0])
    np.testing.assert_allclose(np.ravel(second_mark.get_data()), [4.0, 30.0])
    assert first.get_color() != second.get_color()
    assert first_mark.get_markerfacecolor() == first.get_color()
    assert second_mark.get_markerfacecolor() == "white"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "hasfl\n60.0% in 2 h 40 min",
        "rbs+rms\n30.0% in 4 h 00 min",
        "converged",
        "ended before it converged",
    ]


@pytest.mark.parametrize(("seconds", "scale"), [(9.9, "linear"), (10.1, "log")])
def test_very_different_spans_are_told_by_factors(seconds: float, scale: str) -> None:
    figure = accuracy_against_time({"a": evaluated(FLAT), "b": evaluated(FLAT, seconds=seconds)}, 0)
    assert figure.axes[0].get_xscale() == scale
    if scale == "log":
        assert figure.axes[0].get_xlabel() == "virtual time"
        ticks = dict(zip(figure.axes[0].get_xticks(), figure.axes[0].get_xticklabels(), strict=True))
        assert {place: text.get_text() for place, text in ticks.items()} == {
            1: "1 s",
            10: "10 s",
            60: "1 min",
        }


def test_twenty_strategies_have_twenty_looks() -> None:
    figure = accuracy_against_time({f"strategy {k}": evaluated(FLAT) for k in range(20)}, 0)
    lines = [line for line in figure.axes[0].get_lines() if line.get_linestyle() != "None"]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 20


def test_the_picture_has_a_bar_and_a_line_for_every_strategy() -> None:
    runs = {
        "hasfl": raced([0.2, 0.4, 0.6]),
        "sfl": raced([0.1, 0.2, 0.3, 0.6]),
        "fl": raced([0.1, 0.2, 0.2], seconds=13.0),
    }
    figure = race_picture(runs, 0.5, seed=7)
    bars, curves = figure.axes
    widths = [bar.get_path().get_extents(bar.get_patch_transform()).width for bar in bars.patches]
    assert widths == pytest.approx([6.0, 8.0, 78.0])
    assert [bool(bar.get_hatch()) for bar in bars.patches] == [False, False, True]
    words = [text.get_text() for text in bars.texts]
    assert words == ["6 s", "8 s, 1.33 times as long as hasfl", "not reached after 1 min 18 s: 20.0%"]
    assert [text.get_text() for text in bars.get_yticklabels()] == list(runs)
    assert bars.get_title("left").endswith("are right (seed 7)")
    assert curves.get_title("left") == "Accuracy in the first 24 s"
    assert [axes.get_xlabel() for axes in (bars, curves)] == ["virtual time (s)"] * 2
    assert max(bars.get_xticks()) <= 78.0  # the scale ends with the longest bar
    (first, *_) = curves.get_lines()
    seconds, accuracies = np.asarray(first.get_data())
    assert seconds == pytest.approx([2.0, 4.0, 6.0])
    assert accuracies == pytest.approx([20.0, 40.0, 60.0])
    assert curves.get_ylabel() == "accuracy on held-out\nsamples (%)"
    assert curves.get_xlim() == (0, 24.0)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["hasfl", "sfl", "fl (later)"]


@pytest.mark.parametrize("judged", [1, 2, 3])
def test_rare_judgements_make_no_curve(judged: int) -> None:
    """Then all lines show the test accuracy, and so do the marks where runs reached the goal."""
    rare = raced([0.2, 0.4, 0.45, 0.5, 0.6])
    unjudged = [each for each in rare if each.accuracy is not None][: 5 - judged]
    rare = [replace(each, held_out_accuracy=None) if each in unjudged else each for each in rare]
    _, curves = race_picture({"sfl": raced([0.1, 0.3, 0.6]), "hasfl": rare}, 0.5, seed=0).axes
    lines = {line.get_label(): np.asarray(line.get_data()) for line in curves.get_lines()}
    marks = [np.asarray(line.get_ydata())[0] for line in curves.get_lines() if line.get_marker() == "o"]
    more = 5.0 if judged < 3 else 0.0  # percent: the test set is easier here
    assert lines["sfl"][1] == pytest.approx([10 + more, 30 + more, 60 + more])
    assert len(lines["hasfl"][1]) == (5 if judged < 3 else 3)
    assert marks == pytest.approx([60 + more, (60 if judged == 1 else 50) + more])
    assert curves.get_ylabel().startswith("test accuracy" if judged < 3 else "accuracy on held-out")
    assert [text.get_text() for text in curves.texts] == [
        "goal on held-out samples " if judged < 3 else "goal "
    ]


def test_cells_hold_the_counts() -> None:
    counts = np.array([[5, 0, 7], [0, 0, 120], [1, 2, 3], [0, 0, 0]])
    totals, cells, _ = who_holds_what(counts, ["cat", "dog", "emu"]).axes
    assert [bar.get_height() for bar in totals.containers[0]] == [12, 120, 6, 0]
    np.testing.assert_array_equal(np.nan_to_num(cells_of(cells)), counts.T)
    assert [text.get_text() for text in cells.get_yticklabels()] == ["cat", "dog", "emu"]
    written = {text.get_position(): text.get_text() for text in cells.texts}
    assert written == {(i + 1, j + 1): str(counts[i, j]) for i, j in zip(*np.nonzero(counts), strict=True)}
    assert cells.get_xlabel() == "device"


def test_thousands_of_devices_become_groups_of_like_ones() -> None:
    """Every device holds two classes; so does every group but those where one pair follows another."""
    pairs = [(j, k) for j in range(10) for k in range(j + 1, 10)]
    counts = np.zeros((4500, 10), dtype=np.int64)
    for i in range(4500):
        counts[i, list(pairs[i % 45])] = 6, 4
    figure = who_holds_what(counts, [f"class {j}" for j in range(10)])
    cells = np.nan_to_num(cells_of(figure.axes[1]))
    assert cells.shape == (10, 100)
    np.testing.assert_allclose(cells.sum(axis=0), 10)
    np.testing.assert_allclose(cells.mean(axis=1), counts.mean(axis=0))
    assert ((cells > 0).sum(axis=0) == 2).sum() > 50
    assert (np.diff(cells.argmax(axis=0)) >= 0).all()
    assert "100 groups of the 4,500 devices" in figure.axes[1].get_xlabel()


@pytest.mark.parametrize("classes", [90, 100])
def test_class_names_stay_apart(classes: int) -> None:
    names = [f"class {j}" for j in range(classes)]
    figure = who_holds_what(np.ones((20, classes), dtype=np.int64), names)
    figure.draw_without_rendering()
    shown = figure.axes[1].get_yticklabels()
    assert len(shown) >= 30
    assert [text.get_text() for text in shown] == names[:: classes // len(shown)]
    boxes = [text.get_window_extent() for text in shown]
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(boxes))


@pytest.mark.parametrize("shape", [(4, 3), (4,), (0, 2)])
def test_counts_must_fit_the_classes(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"a column for each of 2 classes, got an array of shape \("):
        who_holds_what(np.zeros(shape, dtype=np.int64), ["cat", "dog"])


def numbered(devices: int) -> list[str]:
    """The names of a drawn fleet."""
    return [str(i + 1) for i in range(devices)]


def row_labels(axes: Any) -> dict[float, str]:
    axes.figure.draw_without_rendering()
    return {
        place: text.get_text() for place, text in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    }


def test_plans_are_drawn_device_by_device_with_gaps_for_absences() -> None:
    records = [
        record(1, devices=np.array([0, 2]), plan=Plan([4, 8], [1, 3])),
        record(2, devices=np.array([1]), plan=Plan([16], [2])),
        record(3, devices=np.array([0, 2]), plan=Plan([5, 9], [1, 4])),
    ]
    figure = plan_over_time(records, numbered(3))
    upper, lower = figure.axes[:2]
    none = np.nan
    np.testing.assert_array_equal(cells_of(upper), [[4, none, 5], [none, 16, none], [8, none, 9]])
    np.testing.assert_array_equal(cells_of(lower), [[1, none, 1], [none, 2, none], [3, none, 4]])
    assert [*upper.get_images()[0].get_extent()] == [0.5, 3.5, 3.5, 0.5]
    assert upper.get_images()[0].get_interpolation() == "nearest"
    assert lower.get_xlabel() == "round (white: the device did not take part)"
    assert plan_over_time(records[:1], numbered(3)).axes[1].get_xlabel() != "round"
    whole = plan_over_time([record(1), record(2)], numbered(3))
    assert whole.axes[1].get_xlabel() == "round"


def test_a_device_that_never_took_part_has_a_row() -> None:
    cells = cells_of(plan_over_time([record(1)], numbered(5)).axes[0])
    assert cells.shape == (5, 1)
    assert np.isnan(cells[3:]).all()


def test_devices_have_their_names_and_many_devices_their_kinds() -> None:
    names = ["pi-1", "a $x$ box", "jetson"]
    few = plan_over_time([record(1)], names)
    assert row_labels(few.axes[0]) == {1: "pi-1", 2: "a $x$ box", 3: "jetson"}
    many = [*(f"pi-{k}" for k in range(1, 9)), *(f"jetson-{k}" for k in range(1, 7))]
    kinds = plan_over_time([record(1)], many)
    assert row_labels(kinds.axes[1]) == {4.5: "pi (8)", 11.5: "jetson (6)"}
    assert [np.mean(line.get_ydata()) for line in kinds.axes[1].get_lines()] == [8.5]
    drawn = row_labels(plan_over_time([record(1)], numbered(20)).axes[0])
    assert all(text == f"{place:.0f}" for place, text in drawn.items() if 1 <= place <= 20)
    each_its_own = plan_over_time([record(1)], [f"box {chr(97 + k)}" for k in range(26)])
    assert len(row_labels(each_its_own.axes[0])) <= 13


def test_every_device_needs_a_name() -> None:
    with pytest.raises(InputError, match="needs the name of every device, got 2 names and device 3: give"):
        plan_over_time([record(1)], ["a", "b"])


def test_large_fleets_and_long_runs_are_thinned_out_in_place() -> None:
    fleet = np.arange(450)
    records = [record(t, devices=fleet, plan=Plan(fleet + 1, fleet % 7 + 1)) for t in range(1, 1002)]
    upper, lower = plan_over_time(records, numbered(450)).axes[:2]
    cells = cells_of(upper)
    assert cells.shape == (150, 334)
    np.testing.assert_array_equal(cells[:, 0], fleet[::3] + 1)
    assert [*upper.get_images()[0].get_extent()] == [0.5, 1002.5, 450.5, 0.5]
    assert (upper.get_xlim(), upper.get_ylim()) == ((0.5, 1001.5), (450.5, 0.5))
    assert lower.get_ylabel() == "device (one in 3)"


def test_nothing_to_draw_is_a_sentence() -> None:
    with pytest.raises(InputError, match="plans needs at least one round, got none: train first"):
        plan_over_time([], ["1"])
    with pytest.raises(InputError, match="accuracies needs at least one run, got none: train first"):
        accuracy_against_time({}, 0)
    with pytest.raises(InputError, match="the run of hasfl must have at least one evaluation"):
        accuracy_against_time({"hasfl": [record(1)]}, 0)


def test_figures_of_next_to_nothing_can_be_drawn(tmp_path: Path) -> None:
    """One round, one device, one class, equal plans, no samples, no time: and no warning."""
    one = replace(record(1, accuracy=0.5, clock=0.0), devices=np.array([0]), plan=Plan([1], [1]))
    for figure in (
        accuracy_against_time({"a": [one], "b": [one]}, 0),
        plan_over_time([one], ["1"]),
        who_holds_what(np.zeros((1, 1), dtype=np.int64), ["cat"]),
    ):
        save_figure(figure, tmp_path / "x.png")


def test_a_figure_is_written_whole_and_always_the_same(tmp_path: Path) -> None:
    runs = {"hasfl": evaluated(FLAT), "other": evaluated(FLAT, seconds=30.0)}
    for name, begins in (("a.png", PNG), ("a.svg", b"<?xml")):
        save_figure(accuracy_against_time(runs, 0), tmp_path / name)
        first = (tmp_path / name).read_bytes()
        assert first.startswith(begins)
        save_figure(accuracy_against_time(runs, 0), tmp_path / name)
        assert (tmp_path / name).read_bytes() == first
        with (
            no_file_above(500),
            pytest.raises(StorageError, match=r"a\.[a-z]*: File too large; free"),
        ):
            save_figure(plan_over_time(runs["hasfl"], numbered(3)), tmp_path / name)
        assert (tmp_path / name).read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg"]


def test_a_figure_goes_where_it_can_be_written(tmp_path: Path) -> None:
    figure = plan_over_time([record(1)], numbered(3))
    with pytest.raises(InputError, match=r"is written as .png or .svg, got a.pdf: change its ending"):
        save_figure(figure, tmp_path / "a.pdf")
    with pytest.raises(InputError, match="does not exist: make it, or choose another place"):
        save_figure(figure, tmp_path / "missing" / "a.png")


def test_no_global_state_and_nothing_imported_before_it_is_needed(tmp_path: Path) -> None:
    code = """if True:
        import sys
        from pathlib import Path
        from hasfl.report import figures
        from hasfl.runs import store
        assert not {"matplotlib", "torch", "pydantic"} & set(sys.modules)
        from tests.report.runs import record
        figures.save_figure(figures.plan_over_time([record(1)], ["a", "b", "c"]), Path(sys.argv[1]))
        assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.png")], check=True)


def test_without_matplotlib_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"needs matplotlib: pip install 'hasfl\[train\]'"):
        plan_over_time([record(1)], numbered(3))
