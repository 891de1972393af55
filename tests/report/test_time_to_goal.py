"""Who reaches a goal first: by held-out samples, at the first evaluation that is good enough."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hasfl.record import RoundRecord
from hasfl.report.time_to_goal import finish, race_picture
from tests.report.runs import record


def raced(held_out: Sequence[float], *, seconds: float = 1.0) -> list[RoundRecord]:
    """Two rounds for each evaluation; on the test set the model is better than on held-out samples."""
    records = []
    for t in range(1, 2 * len(held_out) + 1):
        accuracy = held_out[t // 2 - 1] if t % 2 == 0 else None
        on_test = None if accuracy is None else accuracy + 0.05
        records.append(record(t, clock=seconds * t, accuracy=on_test, held_out_accuracy=accuracy))
    return records


def test_the_first_evaluation_that_is_good_enough_on_held_out_samples() -> None:
    end = finish("hasfl", raced([0.1, 0.46, 0.5, 0.4, 0.9], seconds=3.0), 0.5)
    assert (end.strategy, end.reached, end.rounds, end.seconds) == ("hasfl", True, 6, 18.0)
    assert (end.held_out_accuracy, end.accuracy) == (0.5, 0.55)


def test_a_goal_that_is_not_reached_is_told_by_the_last_evaluation() -> None:
    end = finish("sfl", raced([0.1, 0.49, 0.3]), 0.5)
    assert (end.reached, end.rounds, end.seconds, end.held_out_accuracy) == (False, 6, 6.0, 0.3)


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
