"""Streams are functions of (root, purpose, key) and of nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from hasfl.seeds import Seeds

keys = st.tuples(st.integers(0, 2**32), st.text(max_size=8), st.lists(st.integers(0, 2**20), max_size=3))


def first_draws(root: int, purpose: str, key: list[int]) -> list[float]:
    return Seeds(root).stream(purpose, *key).random(4).tolist()


@given(keys)
def test_the_same_key_draws_the_same(key: tuple[int, str, list[int]]) -> None:
    assert first_draws(*key) == first_draws(*key)


@given(keys, keys)
def test_other_keys_draw_otherwise(
    one: tuple[int, str, list[int]], other: tuple[int, str, list[int]]
) -> None:
    assert (first_draws(*one) == first_draws(*other)) == (one == other)
