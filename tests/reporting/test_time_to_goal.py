"""Who reaches a goal first: by held-out samples, at the first evaluation that is good enough."""

from collections.abc import Sequence

import numpy as np
import pytest

from hasfl.record import RoundRecord
from hasfl.reporting.time_to_goal import finish, race_picture
from tests.reporting.runs import record


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
        "hasfl": raced([0.2, 0.6]),
        "sfl": raced([0.1, 0.3, 0.6]),
        "fl": raced([0.1, 0.2], seconds=9.0),
    }
    bars, curves = race_picture(runs, 0.5, seed=7).axes
    widths = [bar.get_path().get_extents(bar.get_patch_transform()).width for bar in bars.patches]
    assert widths == pytest.approx([4.0, 6.0, 36.0])
    assert [bool(bar.get_hatch()) for bar in bars.patches] == [False, False, True]
    words = [text.get_text() for text in bars.texts]
    assert words == ["4 s", "6 s, 1.5 times as long as hasfl", "not reached after 36 s: 20.0%"]
    assert [text.get_text() for text in bars.get_yticklabels()] == list(runs)
    assert bars.get_title("left").endswith("are right (seed 7)")
    assert curves.get_title("left") == "Accuracy in the first 16 s"
    assert [axes.get_xlabel() for axes in (bars, curves)] == ["virtual time (s)"] * 2
    assert max(bars.get_xticks()) <= 36.0  # the scale ends with the longest bar
    (first, *_) = curves.get_lines()
    seconds, accuracies = np.asarray(first.get_data())
    assert seconds == pytest.approx([2.0, 4.0])
    assert accuracies == pytest.approx([20.0, 60.0])
    assert curves.get_xlim() == (0, 16.0)
    legend = [text.get_text() for text in curves.get_legend().get_texts()]
    assert legend == ["hasfl", "sfl", "fl (later)"]
