"""The report in a real browser: what it draws, how it is used, and that it does nothing else."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hasfl.record import EDGE, MeasuredRound, RoundRecord
from hasfl.runs.reports import report_of
from tests.cli.test_clock import with_records
from tests.report.browser import Tab
from tests.report.trained_runs import train
from tests.runs.scenarios import MOVING, rounds

ROUNDS = 9
LONG = {"stop.rounds": str(ROUNDS), "training.interval": "3", "training.evaluate_every": "1"}
HOSTILE = """</script><img src=x onerror="document.title='owned'">&lt;b&gt;"""
UNEQUAL = f"""
[[device]]
name = {json.dumps("pi " + HOSTILE)}
count = 2
flops = "30 GFLOPS"
up_rate = "20 Mbps"
down_rate = "50 Mbps"

[[device]]
name = "laptop"
count = 2
flops = "300 GFLOPS"
up_rate = "5 Mbps"
down_rate = "40 Mbps"
"""
SMALLEST = 360  # pixels, a narrow phone
GANTT = "document.querySelector('#time .gantt svg').innerHTML"
CAPTION = "document.querySelector('#time figcaption').textContent"
SLIDER = "document.querySelector('#time input[type=range]')"
SIDEWAYS = "document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two strategies, one of them with two seeds; names of runs and devices are as bad as they can be."""
    folder = tmp_path_factory.mktemp("compared")
    own = LONG | {"fleet.devices": ""}
    found = [train(folder, "hasfl", own, UNEQUAL, seed=seed) for seed in (0, 1)]
    found.append(train(folder, "rbs+rms", own, UNEQUAL))
    return [*found[:2], Path(shutil.move(found[2], folder / "runs" / HOSTILE.replace("/", "")))]


@pytest.fixture(scope="module")
def comparison(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("page") / "comparison.html", runs)


def written(file: Path, runs: list[Path]) -> Path:
    file.write_text(report_of(runs).html())
    return file


def test_everything_is_drawn_from_the_file_alone(tab: Tab, comparison: Path) -> None:
    tab.show(comparison)
    tab.require_peace(comparison)
    assert tab.look("document.querySelectorAll('main > section').length") == 7
    assert tab.look("[...document.querySelectorAll('.answer')].every((each) => each.textContent.length > 20)")
    assert tab.look("document.querySelectorAll('.js-plotly-plot').length") == 3  # curves, seconds, bytes
    # A band, two seeds and their mean for the first strategy, one curve for the second.
    assert tab.look("document.querySelectorAll('#convergence .scatterlayer .trace').length") == 5
    assert tab.look("document.querySelectorAll('#time .barlayer .point').length") > 3
    assert tab.look("document.querySelectorAll('#time .gantt .bar').length") > 8
    assert tab.look("document.querySelectorAll('#time .gantt .setter').length") > 0
    assert tab.look("document.querySelectorAll('#time .gantt .wait').length") > 0
    assert tab.look("document.querySelectorAll('#labels td.cell').length") == 4 * 10


def test_names_stay_text(tab: Tab, comparison: Path) -> None:
    tab.show(comparison)
    assert tab.look("document.images.length") == 0
    assert HOSTILE in tab.look("document.querySelector('#labels tbody').textContent")
    assert HOSTILE.replace("/", "") in tab.look("document.querySelector('#time select').textContent")
    assert "owned" not in tab.look("document.title")


def test_keys_move_the_round(tab: Tab, comparison: Path) -> None:
    tab.show(comparison)
    assert tab.look(f"{SLIDER}.getAttribute('aria-valuetext')") == f"3 of {ROUNDS}"  # a round with all steps
    tab.look(f"{SLIDER}.focus()")
    tab.press("Home")
    first, words = tab.look(GANTT), tab.look(CAPTION)
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert tab.look(f"{SLIDER}.getAttribute('aria-valuetext')") == f"3 of {ROUNDS}"
    assert tab.look(GANTT) != first  # the third round ends with an aggregation
    assert "sub-models" in tab.look(CAPTION)
    assert "sub-models" not in words
    tab.press("ArrowLeft")
    tab.press("ArrowLeft")
    assert tab.look(GANTT) == first


def test_keys_hide_a_curve_and_change_the_axis(tab: Tab, comparison: Path) -> None:
    tab.show(comparison)
    axis = "document.querySelector('#convergence .xtitle').textContent"
    assert "virtual time" in tab.look(axis)
    tab.look("document.querySelector('#convergence .legend input').focus()")
    tab.press(" ")
    assert tab.look("document.querySelectorAll('#convergence .scatterlayer .trace').length") == 1
    tab.look("document.querySelector('#convergence .options input').focus()")
    tab.press("ArrowRight")
    assert tab.look(axis) == "rounds"
    tab.require_peace(comparison)


def test_the_pointer_gets_numbers(tab: Tab, comparison: Path) -> None:
    tab.show(comparison)
    tab.look("document.querySelector('#convergence .chart').scrollIntoView({behavior: 'instant'})")
    chart, area = "document.querySelector('#convergence .chart')", "#convergence .nsewdrag"
    point = f"{chart}._fullLayout.xaxis.d2p({chart}.data.find((trace) => trace.name).x[0])"
    left, top = tab.look(f"(({{x, y}}) => [x, y])(document.querySelector('{area}').getBoundingClientRect())")
    tab.move(left + tab.look(point), top + 100)
    tab.until("document.querySelector('#convergence .hoverlayer').textContent.includes('after')")
    assert " %" in tab.look("document.querySelector('#convergence .hoverlayer').textContent")
    tab.require_peace(comparison)


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_scrolls_sideways_on_a_phone(tab: Tab, comparison: Path, dark: bool) -> None:
    tab.show(comparison, width=SMALLEST, height=740, dark=dark)
    tab.look("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert tab.look(SIDEWAYS) == 0
    widths = "[...document.querySelectorAll('.main-svg')].map((each) => each.clientWidth)"
    assert max(tab.look(widths)) <= SMALLEST
    ink = tab.look("getComputedStyle(document.querySelector('#convergence .xtick text')).fill")
    assert (sum(map(int, ink[4:-1].split(","))) > 3 * 128) == dark
    tab.require_peace(comparison)


def test_on_paper_it_is_light_and_fits(tab: Tab, comparison: Path, tmp_path: Path) -> None:
    tab.show(comparison, dark=True)
    look = "[page.colour('paper'), document.querySelector('#convergence .main-svg').clientWidth]"
    before = tab.look(look)
    tab.look(f"addEventListener('beforeprint', () => {{ window.seen = {look}; }})")
    tab.printed(tmp_path / "report.pdf")
    assert tab.look("window.seen")[0] == "rgb(255, 255, 255)"
    assert tab.look("window.seen")[1] < 700
    assert tab.look(look) == before  # the screen is as it was
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "changes"),
    [("hasfl", LONG), ("rbs+hams", MOVING | LONG), ("fl", LONG), ("sl", LONG), ("cl", LONG)],
)
def test_a_round_on_the_chart_takes_as_long_as_its_record_says(
    tab: Tab, tmp_path: Path, strategy: str, changes: dict[str, str]
) -> None:
    run = train(tmp_path, strategy, changes)
    tab.show(written(tmp_path / "one.html", [run]))
    ends = tab.look(
        "(([run]) => run.at.map((k) => charts.timeline(report.times(run, k)).end))(page.data.runs)"
    )
    *known, _ = rounds(run)  # the last aggregation follows a plan that nobody knows
    assert ends[:-1] == pytest.approx([row["seconds"] for row in known], rel=1e-3)


def measured(row: dict[str, Any]) -> RoundRecord:
    """A round on two machines that takes twice as long as predicted."""
    predicted = {"device_forward": {0: 1.0, 1: 4.0}, "server_forward": {EDGE: 0.5}}
    seen = MeasuredRound(
        seconds=9.0,
        clock=9.0 * row["round"],
        spans={"split_training": 9.0},
        measured={step: {party: 2 * time for party, time in of.items()} for step, of in predicted.items()},
        predicted=predicted,
    )
    plan = {"devices": [0, 1], "batch_sizes": [2, 3], "cuts": [1, 1]}
    return RoundRecord.from_json(row | plan | {"measured": seen.as_json()})


def test_machines_have_predicted_beside_measured(tab: Tab, runs: list[Path], tmp_path: Path) -> None:
    records = [measured(row) for row in rounds(runs[0])]
    file = written(tmp_path / "machines.html", [with_records(runs[0], tmp_path / "networked", records)])
    tab.show(file)
    tab.require_peace(file)
    assert "Predicted, in the upper bars: The round takes 4.5 s." in tab.look(CAPTION)
    assert "Measured, in the lower bars: The round takes 9 s." in tab.look(CAPTION)
    bars = "[...document.querySelectorAll('#time .gantt rect.a3f')]"
    predicted, taken = tab.look(f"{bars}.map((bar) => Number(bar.getAttribute('width')))")
    assert taken == pytest.approx(2 * predicted, rel=0.01)
    assert "wall time" in tab.look("document.querySelector('#convergence .controls').textContent")
