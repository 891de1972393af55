"""`hasfl plan`: what it prints, and one sentence for every wrong input."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hasfl import MeasuredConstants, Plan, best_plan, evaluate
from hasfl.runs.questions import read_problem
from tests import golden
from tests.cli.conftest import Hasfl
from tests.problems import raw

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE, DEMO = EXAMPLES / "table1.toml", EXAMPLES / "demo.toml"


@cache
def planned(*words: object) -> dict[str, Any]:
    """What `hasfl plan --json` prints of a file that no test changes."""
    found: dict[str, Any] = json.loads(golden.hasfl("plan", *words, "--json"))
    return found


def write(folder: Path, problem: object) -> Path:
    path = folder / "problem.json"
    path.write_text(json.dumps(problem))
    return path


def test_json_is_one_object_that_says_what_evaluate_says(hasfl: Hasfl, tmp_path: Path) -> None:
    path = write(tmp_path, raw())
    outcome = hasfl("plan", path, "--batch", "16,32,8", "--cut", "2,4,1", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    printed = json.loads(outcome.out)
    report = evaluate(Plan(np.array([16, 32, 8]), np.array([2, 4, 1])), read_problem(str(path)))
    assert printed == {
        "constants": "given",
        "batch_sizes": [16, 32, 8],
        "cuts": [2, 4, 1],
        "objective": report.objective,
        "rounds": report.rounds,
        "round_seconds": report.round_seconds,
        "split_seconds": report.split_seconds,
        "aggregation_seconds": report.aggregation_seconds,
        "feasible": True,
        "margins": {
            "C1": report.margins.target,
            "C4": report.margins.memory.tolist(),
            "max_batch": [48, 32, 56],
            "min_batch": [15, 31, 7],
        },
    }


def test_one_number_goes_for_every_device(hasfl: Hasfl, tmp_path: Path) -> None:
    printed = json.loads(hasfl("plan", write(tmp_path, raw()), "--batch", 16, "--cut", 4, "--json").out)
    assert (printed["batch_sizes"], printed["cuts"]) == ([16] * 3, [4] * 3)


def test_a_plan_that_does_not_fit_is_told(hasfl: Hasfl, tmp_path: Path) -> None:
    path = write(tmp_path, raw(**{"fleet.memory": [3e10, 3e10, 1e6]}))
    printed = json.loads(hasfl("plan", path, "--batch", 16, "--cut", 4, "--json").out)
    assert printed["feasible"] is False
    assert [margin >= 0 for margin in printed["margins"]["C4"]] == [True, True, False]
    shown = hasfl("plan", path, "--batch", "16,16,65", "--cut", 4).out
    assert "device 3 lacks memory" in shown
    assert "device 3 exceeds max_batch 64" in shown


def test_standard_input(hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from_file = hasfl("plan", write(tmp_path, raw()), "--batch", 1, "--cut", 1, "--json").out
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(raw())))
    assert hasfl("plan", "-", "--batch", 1, "--cut", 1, "--json").out == from_file


def test_the_table_shows_the_plan_and_marks_the_slowest(hasfl: Hasfl) -> None:
    outcome = hasfl("plan", EXAMPLE, "--batch", 16, "--cut", 4)
    assert outcome.code == 0
    rows = [line for line in outcome.out.splitlines() if "conv4" in line]
    assert len(rows) == 20
    assert sum(row.count("◀") for row in rows) == 2
    problem = read_problem(str(EXAMPLE))
    seconds = evaluate(Plan.uniform(20, batch_size=16, cut=4), problem)
    assert f"{seconds.rounds:,.1f} rounds" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 100


def test_a_large_fleet_is_shown_by_its_slowest(hasfl: Hasfl, tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace("[fleet] # empty: 20 devices as in Table I", "[fleet]\ndevices = 200")
    path = tmp_path / "large.toml"
    path.write_text(text)
    shown = hasfl("plan", path, "--batch", 16, "--cut", 4).out
    assert "the 24 of 200 devices that take longest" in shown
    assert shown.count("conv4") == 24


def test_a_learning_rate_beyond_the_theorem_is_told(hasfl: Hasfl, tmp_path: Path) -> None:
    path = write(tmp_path, raw(**{"constants.smoothness": 21.0, "target": 1e6}))
    assert (
        "the bound does not hold: γβ = 1.05 is above 1" in hasfl("plan", path, "--batch", 1, "--cut", 1).out
    )


MEASURED = {"rounds": 500.0, "noise": 20.0, "drift_of": [0.05] * 5, "noise_error": 0.1}

# A field of the problem, another value (... leaves it out), and what the sentence must say.
WRONG: list[tuple[str, object, str]] = [
    ("constants", ..., "constants is missing"),
    ("fleet.up_rate", ..., "fleet.up_rate is missing"),
    ("interval", ..., "interval is missing"),
    ("fleet.uprate", [1], "fleet.uprate is not a known field: did you mean up_rate?"),
    ("zzz", 1, "zzz is not a known field: expected one of fleet, profile"),
    (
        "fleet.flops",
        [1e12, -1.0, 1e12],
        "fleet.flops[1] must be a finite number above 0 (and at most 1e+60), got -1.0",
    ),
    ("constants.variance_of", [1, 2, float("nan"), 4, 5], "constants.variance_of[2] must be a finite"),
    ("fleet.server_flops", float("inf"), "fleet.server_flops must be a finite number"),
    ("fleet.memory", [1e9], "fleet.memory has 1 entries but fleet.flops has 3"),
    ("profile.gradient_bits_at", [1.0], "profile.gradient_bits_at has 1 entries"),
    ("constants.moment_of", [1.0], "constants.moment_of has 1 entries but constants.variance_of has 5"),
    ("learning_rate", "fast", "learning_rate must be a valid number, got 'fast'"),
    ("fleet.flops", ["1 TFLOPS", 1, 1], "fleet.flops[0] must be a valid number"),
    ("interval", 2.5, "interval must be a valid integer"),
    ("max_batch", 0, "max_batch must be a whole number from 1 to 1,000,000,000, got 0"),
    ("fleet.flops", [], "fleet.flops must be a list of at least one number"),
    ("fleet.flops", 3, "fleet.flops must be a valid list, got 3"),
    ("profile.forward_flops_upto", [5, 4, 3, 2, 1], "profile.forward_flops_upto[1] = 4 is below"),
    ("target", 1.0, "target 1 does not lie above the floor"),
    ("target", ..., "target is missing: the paper's constants need ε"),
    ("constants.moment_of", ..., "constants.moment_of is missing: expected smoothness, initial_gap"),
    ("constants", {}, "constants.smoothness is missing"),
    ("constants.noise", 3.0, "not both: got initial_gap and noise"),
    ("constants", MEASURED, "target must be left out where the constants are measured"),
    ("constants.drift", 1.0, "constants.drift is not a known field: did you mean drift_of?"),
]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        *(pytest.param({field: value}, said, id=said[:40]) for field, value, said in WRONG),
        (
            {"constants": {"noise": 3.0, "drift_of": [0.1] * 5}, "target": ...},
            "constants.rounds is missing: expected rounds, noise, drift_of",
        ),
        (
            {"constants": {**MEASURED, "drift_of": [0.1]}, "target": ...},
            "constants.drift_of has 1 entries but the profile has 5 layers",
        ),
    ],
)
def test_wrong_problems(hasfl: Hasfl, tmp_path: Path, changes: dict[str, object], sentence: str) -> None:
    outcome = hasfl("plan", write(tmp_path, raw(**changes)), "--batch", 4, "--cut", 2, "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--batch", "4", "--cut", "0"), "--cut must be from 1 to 1,000,000,000, got 0"),
        (("--batch", "4", "--cut", "6"), "a cut must lie between 1 and 5, the number of layers, got 6"),
        (("--batch", "0", "--cut", "1"), "--batch must be from 1 to 1,000,000,000, got 0"),
        (("--batch", "1,2", "--cut", "1"), "--batch has 2 entries for 3 devices"),
        (("--batch", "many", "--cut", "1"), "--batch must be a whole number, or one per device"),
        (("--batch", "1.5", "--cut", "1"), "--batch must be a whole number"),
        (
            ("--batch", "99999999999999999999", "--cut", "1"),
            "--batch must be from 1 to 1,000,000,000, got 99999999999999999999",
        ),
        (("--solver", "magic"), "solver must be exact or bcd, got 'magic'"),
        (("--solver", "bcd", "--cut", "1"), "solver bcd finds batch sizes and cuts together"),
        (("--gap", "2"), "--gap"),
        (("--cut", "6"), "a cut must lie between 1 and 5, the number of layers, got 6"),
        (("--batch", "65"), "batch size 65 of device '1' is above 64, the smaller of max_batch"),
        (("--sensitivity", "--cut", "4"), "--sensitivity compares the best plans"),
        (("--sensitivity", "--solver", "bcd"), "--sensitivity compares the best plans"),
        (
            ("--interval", "often"),
            "--interval must be a whole number, several like 5,15,50, or best; got 'often'",
        ),
        (("--interval", "5,,15"), "--interval must be a whole number, several like 5,15,50, or best"),
        (("--interval", "5,best"), "--interval must be a whole number, several like 5,15,50, or best"),
        (("--interval", "0"), "--interval must be from 1 to 1,000,000,000, got 0"),
        (("--interval", "1e3"), "--interval must be a whole number"),
        (("--interval", "1000"), "no plan reaches target 400 (C1)"),
        (("--nonsense",), "No such option"),
        (("--html", "plan.pdf"), "--html must be a file that ends with .html, got plan.pdf"),
        (
            ("--html", "no/folder/plan.html"),
            "--html must be in a folder that exists, got no/folder/plan.html",
        ),
        (
            ("--html", "plan.html", "--serve"),
            "give either --html for a file or --serve for a server, not both",
        ),
        (("--serve", "--json"), "--serve shows the plan in a browser and --json prints it: give one of them"),
        (("--port", "80"), "--port belongs to --serve, got --port 80 alone: add --serve"),
        (("--serve", "--port", "0"), "--port"),
    ],
)
def test_wrong_options(hasfl: Hasfl, tmp_path: Path, options: tuple[str, ...], sentence: str) -> None:
    outcome = hasfl("plan", write(tmp_path, raw()), *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("p.json", "{", "p.json is not valid JSON"),
        ("p.json", "[" * 100_000, "p.json is not valid JSON"),
        ("p.json", "1" * 5000, "p.json is not valid JSON"),
        ("p.json", "[1]", "the document must be a table with named fields"),
        ("p.toml", "= 1", "p.toml is not valid TOML"),
        ("p.yaml", "a: 1", "expected a scenario (.toml), a problem (.json) or - for standard input"),
    ],
)
def test_wrong_files(hasfl: Hasfl, tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (tmp_path / name).write_text(text)
    outcome = hasfl("plan", tmp_path / name, "--batch", 1, "--cut", 1)
    assert (outcome.code, outcome.out) == (2, "")
    assert sentence in outcome.err


def test_files_that_cannot_be_read(hasfl: Hasfl, tmp_path: Path) -> None:
    outcome = hasfl("plan", tmp_path / "none.json", "--batch", 1, "--cut", 1)
    assert (outcome.code, "No such file" in outcome.err) == (2, True)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    outcome = hasfl("plan", tmp_path / "binary.json", "--batch", 1, "--cut", 1)
    assert (outcome.code, "it is not text in UTF-8" in outcome.err) == (2, True)


def test_as_a_program_without_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "hasfl", "plan", str(write(tmp_path, raw()))]
    done = subprocess.run(
        [*command, "--batch", "16", "--cut", "4", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["feasible"]
    imported = {line.rsplit("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "numpy" in imported
    assert "torch" not in imported


def test_version_and_help(hasfl: Hasfl) -> None:
    assert hasfl("--version").out.startswith("hasfl 0.")
    assert "plan" in hasfl("--help").out


def test_verbs_and_options_are_few(hasfl: Hasfl) -> None:
    from typer.main import get_command

    from hasfl.cli.main import app

    verbs = dict(get_command(app).commands)  # type: ignore[attr-defined]
    here = {"plan", "profile", "data", "train", "compare", "runs", "show", "export", "report", "doctor"}
    here |= {"reproduce"}
    assert set(verbs) == here | {"keys", "serve", "submit", "status", "clock"}  # these are for real machines
    parties = dict(verbs.pop("serve").commands)
    assert set(parties) == {"fed", "edge", "device", "local"}
    del parties["local"]  # it has the options of submit, and those of rehearsed devices
    assert len(verbs.pop("plan").params) <= 14  # three of them are for its page
    assert all(len(verb.params) <= 11 for verb in (verbs | parties).values())  # an argument and ten options


def test_a_search_prints_its_certificate(hasfl: Hasfl, tmp_path: Path) -> None:
    path = write(tmp_path, raw())
    printed = json.loads(hasfl("plan", path, "--json").out)
    assert printed["status"] == "optimal"
    assert printed["lower_bound"] <= printed["objective"]
    assert printed["gap"] <= 1e-3 * (1 + 1e-9)
    assert printed["seconds"] > 0
    uniform = json.loads(hasfl("plan", path, "--batch", 16, "--cut", 4, "--json").out)
    assert printed["objective"] <= uniform["objective"]
    tighter = json.loads(hasfl("plan", path, "--gap", 1e-9, "--json").out)
    assert tighter["objective"] <= printed["objective"] * (1 + 1e-12)


def test_what_is_given_is_kept(hasfl: Hasfl, tmp_path: Path) -> None:
    path = write(tmp_path, raw())
    cuts = json.loads(hasfl("plan", path, "--batch", "16,8,4", "--json").out)
    assert (cuts["batch_sizes"], cuts["status"]) == ([16, 8, 4], "optimal")
    batches = json.loads(hasfl("plan", path, "--cut", "2,4,2", "--json").out)
    assert (batches["cuts"], batches["status"]) == ([2, 4, 2], "optimal")


def test_the_papers_solver(hasfl: Hasfl, tmp_path: Path) -> None:
    path = write(tmp_path, raw())
    printed = json.loads(hasfl("plan", path, "--solver", "bcd", "--json").out)
    assert (printed["status"], printed["lower_bound"], printed["gap"]) == ("settled", None, None)
    assert printed["path"][-1] == pytest.approx(printed["objective"])
    assert printed["objective"] >= json.loads(hasfl("plan", path, "--json").out)["lower_bound"]
    assert "a heuristic, nothing is proved" in hasfl("plan", path, "--solver", "bcd").out


def test_time_may_run_out(hasfl: Hasfl) -> None:
    printed = json.loads(hasfl("plan", EXAMPLE, "--time-limit", 0, "--json").out)
    assert printed["status"] == "limit"
    assert 0 <= printed["lower_bound"] <= printed["objective"]


def test_what_takes_long_says_what_it_does(
    hasfl: Hasfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal, for every plan that is made; elsewhere nothing is added to the output."""
    told = list[str]()
    monkeypatch.setattr("rich.status.Status.update", lambda self, words: told.append(words))
    done = hasfl("plan", write(tmp_path, raw()), "--why", "--interval", "5,15", "--sensitivity")
    assert done.err == ""
    assert told[:2] == [f"planning with an aggregation every {interval} rounds" for interval in (5, 15)]
    plans = 1 + 3 + 6 * 3  # without an upgrade, with one of the edge server, with one of a device
    upgrades = [words for words in told if words.startswith("looking for the best upgrade")]
    assert [words.split(",")[0].partition(": ")[2] for words in upgrades] == [
        f"plan {number} of {plans}" for number in range(1, plans + 1)
    ]
    assert told[-1] == "planning with wrong constants"


def test_why(hasfl: Hasfl, tmp_path: Path) -> None:
    path = write(tmp_path, raw())
    shown = " ".join(hasfl("plan", path, "--why").out.split())  # without line breaks
    for part in (
        "send its activations",
        "be done with its gradients",
        "send its layers",
        "receive its layers",
    ):
        assert f"is the last to {part}" in shown
    assert shown.count("10 % more") == 3
    printed = json.loads(hasfl("plan", path, "--why", "--json").out)
    assert set(printed["set_by"]) == {"T3", "T4", "T5", "T6"}
    upgrades = printed["upgrades"]
    saved = [upgrade["saved_seconds"] for upgrade in upgrades]
    assert len(saved) == 3 + 3 * 6
    assert saved == sorted(saved, reverse=True)
    assert saved[0] > 0


def test_a_search_that_runs_out_of_time_says_so(hasfl: Hasfl, tmp_path: Path) -> None:
    scenario = tmp_path / "large.toml"
    constants = "rounds = 100\nnoise = 20\ndrift_of = [" + ", ".join(["0.1"] * 16) + "]"
    scenario.write_text(
        f"[fleet]\ndevices = 200\nup_rate = ['10 Mbps', '80 Mbps']\n[constants]\n{constants}\n"
    )
    shown = hasfl("plan", scenario, "--gap", "1e-9", "--time-limit", "0.1").out
    assert "stopped at the time limit: no plan takes less than" in shown
    assert "--time-limit goes on" in shown
    printed = json.loads(hasfl("plan", scenario, "--gap", "1e-9", "--time-limit", "0.1", "--json").out)
    assert printed["status"] == "limit"
    assert 0 < printed["lower_bound"] < printed["objective"]


def test_constants_measured_in_training(hasfl: Hasfl, tmp_path: Path) -> None:
    path = write(tmp_path, raw(constants=MEASURED, target=...))
    printed = json.loads(hasfl("plan", path, "--json").out)
    assert (printed["status"], "C1" in printed["margins"], printed["feasible"]) == ("optimal", False, True)
    inverse = np.mean([1 / b for b in printed["batch_sizes"]])
    private = 1 + 0.05 * max(printed["cuts"])
    assert printed["rounds"] == pytest.approx(500 * (1 + 20 * inverse * private))
    shown = hasfl("plan", path, "--batch", 10, "--cut", 2).out
    assert (
        "1,600 rounds: infinitely large batches would need 500; to these, small batches add 200.0%, and"
        in shown
    )
    papers = json.loads(hasfl("plan", path, "--solver", "bcd", "--json").out)
    assert (papers["status"], papers["lower_bound"], "C1" in papers["margins"]) == ("settled", None, False)
    assert papers["path"][0] > papers["objective"] >= printed["lower_bound"]
    private = 1 + 0.05 * max(papers["cuts"])
    inverse = np.mean([1 / b for b in papers["batch_sizes"]])
    assert papers["rounds"] == pytest.approx(500 * (1 + 20 * inverse * private))


@pytest.mark.parametrize("changes", [{}, {"constants": MEASURED, "target": ...}], ids=["paper", "measured"])
def test_sensitivity(hasfl: Hasfl, tmp_path: Path, changes: dict[str, object]) -> None:
    path = write(tmp_path, raw(**changes))
    printed = json.loads(hasfl("plan", path, "--sensitivity", "--json").out)
    constants = {mistake["constant"] for mistake in printed["sensitivity"]}
    assert constants == ({"rounds", "noise", "drift"} if changes else {"β", "ϑ", "σ²", "G²", "ε"})
    assert len(printed["sensitivity"]) == 4 * len(constants)
    assert all((each["regret"] is None) == (each["trouble"] is not None) for each in printed["sensitivity"])
    shown = hasfl("plan", path, "--sensitivity").out
    assert all(f"If {constant} is off by 2 ×," in shown for constant in constants)
    assert "sensitivity" not in json.loads(hasfl("plan", path, "--json").out)


def test_names_are_shown_as_they_are(hasfl: Hasfl, tmp_path: Path) -> None:
    names = ["[red]x[/red]", "[/foo]", "[bold"]
    shown = hasfl("plan", write(tmp_path, raw(**{"fleet.names": names}))).out
    assert all(name in shown for name in names)


@pytest.mark.parametrize("width", ["60", "80", "100", "200"])
def test_the_tables_fit_the_terminal(hasfl: Hasfl, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setattr("tests.cli.conftest.COLUMNS", width)
    shown = hasfl("plan", EXAMPLE).out
    assert max(map(len, shown.splitlines())) <= int(width)
    assert "…" not in shown or width == "60"


def test_a_problem_that_costs_nothing(hasfl: Hasfl, tmp_path: Path) -> None:
    free = {f"profile.{field}": [0.0] * 5 for field in raw()["profile"]}
    path = write(tmp_path, raw(**free))
    printed = json.loads(hasfl("plan", path, "--json").out)
    assert (printed["objective"] < 1e-80, printed["status"]) == (True, "optimal")
    assert hasfl("plan", path).code == 0


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hasfl", "plan", str(EXAMPLE), "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "hasfl: cannot write: No space left on device\n"


def test_no_plan_at_all(hasfl: Hasfl, tmp_path: Path) -> None:
    starved = hasfl("plan", write(tmp_path, raw(**{"fleet.memory": [3e10, 1e3, 3e10]})))
    assert (starved.code, starved.out) == (2, "")
    assert "no plan fits the memory of device '2'" in starved.err
    unreachable = hasfl("plan", write(tmp_path, raw(target=1e-6)))
    assert (unreachable.code, unreachable.out) == (2, "")
    assert "no plan reaches target 1e-06 (C1)" in unreachable.err


OF_ALL_ROUNDS = {"objective", "rounds", "lower_bound", "path"}


def test_without_constants_the_plan_rests_on_guesses_and_says_so(hasfl: Hasfl) -> None:
    """There is no training time, and the two commands that measure are there to be copied."""
    done = hasfl("plan", DEMO)
    assert done.code == 0
    assert "How many rounds training takes is unknown, so there is no training time." in done.out
    assert f"    hasfl train {DEMO} --run measured\n" in done.out
    assert f"    hasfl plan {DEMO} --from runs/measured\n" in done.out
    assert "of training =" not in done.out
    assert "infinitely large batches" not in done.out
    assert " a round\n" in done.out
    printed = planned(DEMO)
    assert printed["constants"] == "guessed"
    assert not OF_ALL_ROUNDS & set(printed)
    assert printed["gap"] <= 1e-3 * (1 + 1e-9)
    assert printed["round_seconds"] > 0
    given = planned(EXAMPLE)
    assert given["constants"] == "given"
    assert set(given) >= OF_ALL_ROUNDS


def test_the_guesses_are_printed_with_their_ratios(hasfl: Hasfl) -> None:
    """Each ratio follows from the constants that are printed beside it, given as those of a file."""
    printed = planned(DEMO)
    guesses, problem = printed["guesses"], read_problem(str(DEMO))
    assert [guess["says"] for guess in guesses] == [
        f"{way}, {noise}"
        for way in ("one task", "own labels")
        for noise in ("little noise", "middling noise", "much noise")
    ]
    assert sum(guess["weight"] for guess in guesses) == pytest.approx(1)
    assert sum(guess["weight"] for guess in guesses[3:]) == pytest.approx(0.5 * printed["unlikeness"])
    plan = Plan(np.array(printed["batch_sizes"]), np.array(printed["cuts"]))
    for guess in guesses:
        alone = replace(problem, constants=MeasuredConstants(**guess["constants"]))
        own, best = evaluate(plan, alone), best_plan(alone, gap=1e-4)
        assert guess["rounds"] == pytest.approx(own.rounds)
        assert guess["ratio"] <= own.objective / best.lower_bound * (1 + 1e-9)
        assert guess["at_most"] >= own.objective / best.objective * (1 - 1e-9)
        assert 1 / 1.01 <= guess["ratio"] <= guess["at_most"] <= 1.011 * guess["ratio"]
    mean = sum(guess["weight"] * guess["ratio"] for guess in guesses)
    assert printed["mean_ratio"] == pytest.approx(mean)
    assert printed["mean_ratio_bound"] == pytest.approx(mean * (1 - printed["gap"]))
    assert printed["worst_ratio"] == max(guess["ratio"] for guess in guesses)
    for batch, cut in ((1, 1), (4, 2), (16, 5), (64, 1)):  # other plans keep to the bound
        other = json.loads(hasfl("plan", DEMO, "--batch", batch, "--cut", cut, "--json").out)
        assert other["mean_ratio"] >= printed["mean_ratio_bound"]
        assert other["mean_ratio_bound"] is None


GUESSES = {"guesses", "mean_ratio", "mean_ratio_bound", "worst_ratio", "unlikeness"}


def test_given_constants_have_no_guesses(hasfl: Hasfl) -> None:
    assert not GUESSES & set(planned(EXAMPLE))
    shown = hasfl("plan", EXAMPLE).out
    assert "guess" not in shown
    assert "unlike" not in shown


@pytest.mark.parametrize("width", ["80", "100"])
def test_the_guesses_are_shown_in_plain_words(
    hasfl: Hasfl, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setattr("tests.cli.conftest.COLUMNS", width)
    printed = planned(DEMO)
    shown = hasfl("plan", DEMO).out
    assert max(map(len, shown.splitlines())) <= int(width)
    for guess in printed["guesses"]:
        (row,) = [line for line in shown.splitlines() if line.strip().startswith(guess["says"])]
        assert row.rstrip().endswith(f"{guess['ratio']:.2f} times as long")
    words = " ".join(shown.split())
    assert (
        f"with these weights, the plan takes {printed['mean_ratio']:.3f} times as long as the best" in words
    )
    assert f"At worst, it takes {printed['worst_ratio']:.2f} times as long." in words
    assert "No plan has a mean ratio that is smaller by more than 0.1 %." in words
    assert "optimal: at most 0.1 % of the mean ratio (below) could be saved" in words
    assert f"Labels are {printed['unlikeness']:.2f} unlike (0: all devices have the same shares" in words


def test_unknown_labels_are_told(hasfl: Hasfl, tmp_path: Path) -> None:
    profile = tmp_path / "layers.json"
    profile.write_text(hasfl("profile", "small-cnn", "--json").out)
    path = tmp_path / "mine.toml"
    path.write_text('model.profile = "layers.json"\ndata.name = "mine.npz"\n')
    assert "How unlike labels are is unknown, so they count as wholly unlike." in hasfl("plan", path).out
    assert json.loads(hasfl("plan", path, "--json").out)["unlikeness"] is None


def test_another_interval_is_compared_with_that_of_the_file(hasfl: Hasfl) -> None:
    sentence = "The plans that it is compared with have the interval of the file, 15."
    assert sentence in hasfl("plan", DEMO, "--interval", 40).out
    assert sentence not in hasfl("plan", DEMO, "--interval", 15).out


def test_the_papers_solver_takes_guesses(hasfl: Hasfl) -> None:
    printed = json.loads(hasfl("plan", DEMO, "--solver", "bcd", "--json").out)
    exact = planned(DEMO)
    assert (printed["status"], printed["mean_ratio_bound"]) == ("settled", None)
    assert printed["mean_ratio"] >= exact["mean_ratio_bound"]


def test_another_strategy_is_told_to_measure_with_hasfl(hasfl: Hasfl, tmp_path: Path) -> None:
    path = tmp_path / "f l.toml"
    path.write_text('data.name = "digits"\ntraining.strategy = "fl"\n')
    assert f"hasfl train '{path}' --strategy hasfl --run measured" in hasfl("plan", path).out


def test_advice_on_guesses_is_in_shares(hasfl: Hasfl, tmp_path: Path) -> None:
    """Seconds of training would be seconds of one round with infinitely large batches."""
    path = tmp_path / "few.toml"
    path.write_text('data.name = "digits"\nfleet.devices = 2\ntraining.max_batch = 8\n')
    printed = json.loads(hasfl("plan", path, "--why", "--sensitivity", "--json").out)
    assert {frozenset(upgrade) for upgrade in printed["upgrades"]} == {
        frozenset({"resource", "saved_share", "error_share"})
    }
    assert all(-1e-3 < upgrade["saved_share"] < 0.1 for upgrade in printed["upgrades"])
    constants = {mistake["constant"] for mistake in printed["sensitivity"]}
    assert constants == {"noise", "drift", "skew", "curvature"}
    assert all(mistake["predicted_seconds"] is None for mistake in printed["sensitivity"])
    assert "the time was enough to try" in hasfl("plan", path, "--why", "--time-limit", 0).out


def test_guesses_need_no_torch(tmp_path: Path) -> None:
    code = "import sys; from hasfl.cli.main import main; sys.argv = ['hasfl', 'plan', sys.argv[1]]\n"
    code += "try: main()\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code, str(DEMO)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
