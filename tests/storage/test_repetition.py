"""Check which of many like events get a line: some of each key in a while, and every other one is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.repetition import KEYS_MAX, SECONDS, TEXT_CHARACTERS, Repetitions, digest_of


def test_the_first_has_a_line_and_the_next_says_how_many_had_none() -> None:
    repetitions = Repetitions()
    assert [repetitions.left_out("a", at) for at in (0, 1, SECONDS - 1)] == [0, None, None]
    assert repetitions.left_out("b", 1) == 0
    assert [repetitions.left_out("a", at) for at in (SECONDS, SECONDS + 1, 2 * SECONDS)] == [2, None, 1]


@given(
    events=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 20)), max_size=200),
    lines=st.integers(1, 4),
)
def test_every_event_has_a_line_or_is_counted_and_lines_are_limited(
    events: list[tuple[str, float]], lines: int
) -> None:
    repetitions, now = Repetitions(lines=lines), 0.0
    written: dict[str, list[float]] = {}
    counted: dict[str, int] = {}
    waiting: dict[str, int] = {}
    for key, later in events:
        now += later
        left_out = repetitions.left_out(key, now)
        if left_out is None:
            waiting[key] = waiting.get(key, 0) + 1
        else:
            assert left_out == waiting.pop(key, 0)
            counted[key] = counted.get(key, 0) + 1 + left_out
            written.setdefault(key, []).append(now)
    for key in "abc":
        assert counted.get(key, 0) + waiting.get(key, 0) == sum(k == key for k, _ in events)
        times = written.get(key, [])
        assert not any(b - a < SECONDS for a, b in zip(times, times[2 * lines :], strict=False))


def test_memory_is_bounded() -> None:
    repetitions = Repetitions()
    for number in range(KEYS_MAX + 1):
        assert repetitions.left_out(number, 0) == 0
    assert repetitions.left_out(1, 0) == 0, "forgotten: written again, never lost"


@pytest.mark.requirement("X7")
def test_no_text_of_a_key_is_kept() -> None:
    repetitions = Repetitions()
    for number in range(100):
        assert repetitions.left_out(("headrace", f"{number}" + "x" * 100_000), 0) == 0
        assert repetitions.left_out(("headrace", f"{number}" + "x" * 100_000), 0) is None
    assert {len(key) for key in repetitions._windows} == {16}


def test_keys_that_differ_have_different_digests() -> None:
    long = "x" * TEXT_CHARACTERS
    keys = ["", "a", 1, "1", None, (), ("",), ("a", ""), ("", "a"), ("a",), (("a",), ""), (1, "1"), ("1", 1)]
    keys += [long, long + "x", long[1:] + "y", "\ud800"]
    assert len({digest_of(key) for key in keys}) == len(keys)  # type: ignore[arg-type]
    assert digest_of(long + "a") == digest_of(long + "b"), "as far as texts are read"
