"""The page of a plan in a real browser: the file with its stops, and the server that plans anew."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hasfl.cli.plan_page import PagedPlan
from hasfl.runs.questions import read_question, solve
from tests.cli.conftest import Hasfl
from tests.problems import raw
from tests.report.browser import Tab
from tests.report.test_plan_server import serving

HOSTILE = """</script><img src=x onerror="document.title='owned'">&lt;b&gt;"""
SCENARIO = f"""
[data]
name = "digits"
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
up_rate = "10 Mbps"
down_rate = "40 Mbps"
[fleet]
server_flops = "300 GFLOPS"
[training]
interval = 15
[constants]
rounds = 100
noise = 20
drift_of = [0.1, 20, 20, 20, 20]
noise_error = 0.2
"""
NAMES = ["uplink", "compute", "server", "interval", "devices"]
ANSWER = "document.querySelector('#forecast > .answer').textContent"
GANTT = "document.querySelector('#round .gantt svg').innerHTML"
CAPTION = "document.querySelector('#round figcaption').textContent"
TABLE = "document.querySelector('#plan tbody').textContent"
FACTS = "document.querySelector('#forecast .facts').textContent"
SLIDERS = "[...document.querySelectorAll('.sliders input')]"
OUTPUTS = "[...document.querySelectorAll('.sliders output')].map((each) => each.textContent)"
OWN = ["1 ×", "1 ×", "1 ×", "15 rounds", "4 devices"]
MARKS = "[...document.querySelectorAll('#reaction .now')].map((each) => each.outerHTML)"
BUSY = "document.querySelector('.sliders .waiting') !== null"


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "boxes.toml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture(scope="module")
def paged(scenario: Path) -> PagedPlan:
    question, search = read_question(str(scenario)), partial(solve, gap=0.02)  # which is quick
    report = search(question.problem)
    bare = PagedPlan.of(question, report, search, None, None, name=str(scenario), seconds=60)
    return bare.with_sliders(served=False, tell=lambda words: None)


@pytest.fixture(scope="module")
def file(scenario: Path, paged: PagedPlan) -> Path:
    path = scenario.with_suffix(".html")
    paged.write(path)
    return path


def test_the_command_writes_the_page(hasfl: Hasfl, tab: Tab, tmp_path: Path) -> None:
    file, problem = tmp_path / "plan.html", tmp_path / "problem.json"
    problem.write_text(json.dumps(raw()))
    printed = hasfl("plan", problem, "--html", file, "--sensitivity", "--json")
    assert printed.code == 0
    plan = json.loads(printed.out)  # the page adds nothing to it
    tab.show(file)
    tab.require_peace(file)
    assert tab.look("document.querySelectorAll('main > section').length") == 5
    assert tab.look("page.data.plans[0].time") == pytest.approx(plan["objective"], rel=1e-4)
    assert tab.look("page.data.plans[0].plan.batch_sizes") == plan["batch_sizes"]
    assert "If σ² is off by 2 ×" in tab.look("document.querySelector('#advice').textContent")
    assert "has no slider" in tab.look("document.querySelector('#forecast').textContent")
    evaluated = ("plan", problem, "--batch", 4, "--cut", 2, "--why")
    best = json.loads(hasfl(*evaluated, "--json").out)["upgrades"][0]["resource"]
    assert hasfl(*evaluated, "--html", file).out.splitlines()[-1].startswith(f"wrote {file} (0.")
    tab.show(file)
    tab.require_peace(file)
    assert tab.look("document.querySelector('#advice tbody td').textContent") == best
    assert "proved" not in tab.look(FACTS)


def test_everything_is_drawn_from_the_file_alone(tab: Tab, file: Path) -> None:
    tab.show(file)
    tab.require_peace(file)
    times = "charts.timeline(page.data.plans[0].round).end"
    whole = tab.look("page.data.plans[0].split_seconds + page.data.plans[0].aggregation_seconds")
    assert tab.look(times) == pytest.approx(whole, rel=1e-3)
    assert tab.look("document.querySelectorAll('#round .gantt .bar').length") > 8
    assert tab.look("document.querySelectorAll('#round .gantt .b1').length") == 0
    tab.look("document.querySelectorAll('#round .options input')[1].click()")
    assert tab.look("document.querySelectorAll('#round .gantt .b1').length") > 0
    assert tab.look("document.querySelectorAll('#reaction .stops').length") == 5
    assert "with the constants a standard error off" in tab.look(ANSWER)
    assert "proved" in tab.look(FACTS)
    assert HOSTILE in tab.look(TABLE)
    assert (tab.look("document.images.length"), tab.look("document.title")) == (0, "Plan for boxes")


@pytest.mark.parametrize("slider", range(len(NAMES)))
def test_keys_move_the_plan_and_put_the_other_sliders_back(tab: Tab, file: Path, slider: int) -> None:
    tab.show(file)
    first, bars, rows, marks = (tab.look(each) for each in (ANSWER, GANTT, TABLE, MARKS))
    assert tab.look(OUTPUTS) == OWN
    other = (slider + 1) % len(NAMES)
    tab.look(f"{SLIDERS}[{other}].focus()")
    tab.press("End")
    assert tab.look(OUTPUTS)[other] != OWN[other]
    tab.look(f"{SLIDERS}[{slider}].focus()")
    tab.press("End")
    shown = tab.look(OUTPUTS)
    assert [k for k in range(len(NAMES)) if shown[k] != OWN[k]] == [slider]
    expected = f"page.data.plans[page.data.sliders[{slider}].stops.at(-1).plan]"
    assert tab.look(ANSWER) == tab.look(f"{expected}.answer") != first
    assert tab.look(MARKS) != marks
    assert (tab.look(GANTT) != bars) or NAMES[slider] == "interval"  # which may change the rounds alone
    assert f"takes {tab.look(f'page.seconds({expected}.split_seconds)')}." in tab.look(CAPTION)
    assert tab.look(f"{TABLE} === charts.planTable({expected}.plan).querySelector('tbody').textContent")
    tab.look("document.querySelector('.sliders button').focus()")
    tab.press(" ")
    assert [tab.look(each) for each in (ANSWER, GANTT, TABLE, MARKS)] == [first, bars, rows, marks]
    assert tab.look(OUTPUTS) == OWN
    tab.require_peace(file)


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_scrolls_sideways_on_a_phone(tab: Tab, file: Path, dark: bool) -> None:
    tab.show(file, width=360, height=740, dark=dark)
    tab.look("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert tab.look("document.documentElement.scrollWidth - innerWidth") == 0
    paper = tab.look("getComputedStyle(document.querySelector('.sliders')).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 3 * 128) == dark
    tab.require_peace(file)


def test_dragging_plans_anew_with_all_sliders_together(tab: Tab, paged: PagedPlan) -> None:
    page, asked = replace(paged.page, served=True), list[Any]()

    def answer(setting: Any) -> Any:
        asked.append(setting)
        return paged.answer(setting)

    with serving(page.html(), answer) as server:
        tab.show(server.address)
        first, bars = tab.look(ANSWER), tab.look(GANTT)
        drag(tab, 0, 0.2)
        tab.until(f"!({BUSY})")
        assert tab.look(ANSWER) != first
        assert tab.look(GANTT) != bars
        drag(tab, 4, 0.9)
        tab.until(f"!({BUSY})")
        told, places = tab.look(ANSWER), tab.look(f"{SLIDERS}.map((each) => each.valueAsNumber)")
        assert tab.faults == []
        assert set(tab.requests) <= {server.address, f"{server.address}plan"}
    last = {slider.name: slider.positions[k] for slider, k in zip(page.sliders, places, strict=True)}
    assert asked[-1] == last  # the newest place of both sliders wins
    assert last["uplink"] < 1 < last["devices"] / 4
    assert told == paged.answer(last)["answer"]
    assert tab.look("document.querySelectorAll('#reaction .path').length") == 1
    tab.look(f"{SLIDERS}[0].focus()")
    tab.press("End")
    tab.until("document.querySelector('.sliders .state').textContent.includes('The server does not answer')")


def drag(tab: Tab, slider: int, to: float) -> None:
    """Drag a slider with the mouse from its place to a share of its width, in several moves."""
    place = "((input) => { const box = input.getBoundingClientRect(); "
    place += "return [box.left, box.top + box.height / 2, box.width, input.valueAsNumber / input.max]; })"
    left, top, width, now = tab.look(f"{place}({SLIDERS}[{slider}])")
    thumb = 16  # pixels
    moves = [left + thumb / 2 + (width - thumb) * (now + (to - now) * k / 8) for k in range(9)]
    for k, x in enumerate([*moves, moves[-1]]):
        kind = "mousePressed" if k == 0 else "mouseReleased" if k == 9 else "mouseMoved"
        held = {"button": "left", "buttons": int(k < 9), "clickCount": 1}
        tab.call("Input.dispatchMouseEvent", type=kind, x=x, y=top, **held)
