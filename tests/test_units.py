"""Units at the border."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasfl.errors import UnitError
from hasfl.units import DECIMAL, Dimension, format_quantity, format_seconds, format_size, parse_quantity


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("78 Mbps", Dimension.RATE, 7.8e7),
        ("78Mbit/s", Dimension.RATE, 7.8e7),
        ("10 MB/s", Dimension.RATE, 8e7),
        ("1.5 TFLOPS", Dimension.COMPUTE, 1.5e12),
        ("2e3 GFLOP/s", Dimension.COMPUTE, 2e12),
        ("4 GiB", Dimension.SIZE, 4 * 8 * 2**30),
        ("4 GB", Dimension.SIZE, 3.2e10),
        ("512 kbit", Dimension.SIZE, 5.12e5),
        ("7", Dimension.RATE, 7.0),
        (7, Dimension.RATE, 7.0),
    ],
)
def test_reads_what_people_write(text: str | float, dimension: Dimension, value: float) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension", "message"),
    [
        ("78 mbps", Dimension.RATE, "'mbps' is not a unit of bit/s .did you mean 'Mbps'"),
        ("78 GiB", Dimension.RATE, "'GiB' is not a unit of bit/s: write it like '78 Mbps'"),
        ("4 Mbps", Dimension.SIZE, "'Mbps' is not a unit of bit"),
        ("fast", Dimension.COMPUTE, "expected a quantity like '1.5 TFLOPS', got 'fast'"),
        ("1.2.3 TFLOPS", Dimension.COMPUTE, "expected a quantity"),
        ("", Dimension.COMPUTE, "expected a quantity"),
        ("4 gib", Dimension.SIZE, "did you mean 'Gib' or 'GiB'"),
        (float("nan"), Dimension.RATE, "finite"),
        (10**400, Dimension.RATE, "finite"),
        (True, Dimension.RATE, "expected a quantity like '78 Mbps', got True"),
        ("1e999 Mbps", Dimension.RATE, "finite"),
    ],
)
def test_refuses_what_makes_no_sense(text: str | float, dimension: Dimension, message: str) -> None:
    with pytest.raises(UnitError, match=message):
        parse_quantity(text, dimension)


@given(st.floats(1e-3, 1e17))
def test_what_is_written_can_be_read_again(value: float) -> None:
    written = format_quantity(value, "bps", digits=17)
    assert parse_quantity(written, Dimension.RATE) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("value", "text"), [(7.8e7, "78 Mbps"), (999.96e6, "1000 Mbps"), (0.0, "0 bps"), (12.0, "12 bps")]
)
def test_writes_the_prefix_that_fits(value: float, text: str) -> None:
    assert format_quantity(value, "bps") == text
    assert text.split()[1].removesuffix("bps") in DECIMAL


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (2e-12, "0.002 ns"),
        (3.42e-8, "34.2 ns"),
        (4e-5, "40 µs"),
        (1e-3, "1 ms"),
        (0.0123, "12.3 ms"),
        (3.42, "3.42 s"),
        (302, "5 min 02 s"),
        (7 * 3600 + 600, "7 h 10 min"),
        (76 * 3600, "3 d 04 h"),
    ],
)
def test_writes_durations(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        (1, "0.125 B"),
        (8 * 100, "100 B"),
        (8 * 1024, "1 KiB"),
        (8 * 1536, "1.5 KiB"),
        (8 * 4 * 2**30, "4 GiB"),
        (8 * 1023.9 * 2**20, "1020 MiB"),
        (0, "0 B"),
    ],
)
def test_sizes_for_people(bits: float, text: str) -> None:
    assert format_size(bits) == text


@given(st.floats(8, 8 * 2.0**50))
def test_a_size_reads_back_to_three_digits(bits: float) -> None:
    assert parse_quantity(format_size(bits), Dimension.SIZE) == pytest.approx(bits, rel=5.1e-3)
