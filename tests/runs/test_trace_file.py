"""Files of recorded rates: what they mean, and what they refuse."""

from dataclasses import replace
from pathlib import Path

import pytest

from hasfl.errors import InputError
from hasfl.fleet import FleetRanges, draw_fleet
from hasfl.runs.trace_file import read_trace
from hasfl.seeds import Seeds

FLEET = draw_fleet(FleetRanges(devices=4), Seeds(3))
NAMED = replace(FLEET, names=("pi-1", "pi-2", "phone", "box, old"))


def written(folder: Path, text: str) -> Path:
    path = folder / "rates.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_trace_file(tmp_path: Path) -> None:
    lines = ["\ufeffdevice, round ,up_rate,flops", "phone,12,20 Mbps,", "", "pi-1,3,,0.5 TFLOPS"]
    text = "\r\n".join([*lines, '"box, old",4,7e6,2e11', ",,,"])
    trace = read_trace(written(tmp_path, text), NAMED)
    assert set(trace.rows) == {
        (12, 2, "up_rate", 20e6),
        (3, 0, "flops", 0.5e12),
        (4, 3, "up_rate", 7e6),
        (4, 3, "flops", 2e11),
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: expected a header such as round,device,up_rate, got nothing"),
        ("round,up_rate\n", "line 1: the column device is missing"),
        ("round,device,uprate\n", "line 1: expected columns out of .* got 'uprate'"),
        ("round,device,memory\n", "line 1: expected columns out of .* got 'memory'"),
        ("round,device,flops,flops\n", "line 1: expected columns out of .* each once, got 'flops'"),
        ("round,device,flops\n1,pi-1\n", "line 2: expected 3 cells as in the header, got 2"),
        (
            "round,device,flops\n1,pi-1,1\n0,pi-2,1\n",
            "line 3: round must be a whole number of at least 1, got '0'",
        ),
        ("round,device,flops\n\n1.5,pi-1,1\n", "line 3: round must be a whole number .* got '1.5'"),
        ("round,device,flops\n1,phon,1\n", "line 2: the fleet has no device 'phon': did you mean 'phone'"),
        ("round,device,flops\n1,x,1\n", "line 2: the fleet has no device 'x': it has pi-1, pi-2, phone"),
        ("round,device,flops\n1,pi-1,5 Mbps\n", "line 2: 'Mbps' is not a unit of FLOP/s"),
        ("round,device,up_rate\n1,pi-1,-5\n", "line 2: up_rate must be a finite number above 0"),
        ("round,device,up_rate\n1,pi-1,5\n1,pi-1,6\n", "line 3: round 1 of device 'pi-1' was given before"),
        ('round,device,up_rate\n1,"pi-1"x,5\n', "line 2: not a line of CSV"),
    ],
)
def test_faults_of_a_trace_file_name_the_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=f"rates.csv {sentence}") as fault:
        read_trace(written(tmp_path, text), NAMED)
    assert "\n" not in str(fault.value)


def test_a_trace_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*none\.csv: No such file"):
        read_trace(tmp_path / "none.csv", NAMED)
    (tmp_path / "binary.csv").write_bytes(b"round,device\n\xff\xfe")
    with pytest.raises(InputError, match="not text in UTF-8"):
        read_trace(tmp_path / "binary.csv", NAMED)
