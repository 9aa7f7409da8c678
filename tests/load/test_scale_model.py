"""The scale model: its page is up to date, and its sums behave as sums of these parts do."""

from __future__ import annotations

import pytest

from headrace.cli.cost.model import measured
from headrace.config.settings import Settings
from load.benchmarks.scale_model import INLINE_MIB_S, LIMITS, PAGE, STEPS_GB_S, first_limit, inline_rates, page, step

CONSTANTS = measured()


def test_the_page_shows_the_model_of_now() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "python -m load scale_model --page"


def test_each_part_is_fuller_the_more_is_written() -> None:
    steps = [step(rate, CONSTANTS) for rate in STEPS_GB_S]
    for limit in LIMITS:
        shares = [limit.share(one) for one in steps]
        assert shares == sorted(shares), limit.name


@pytest.mark.parametrize("times", [2, 10])
def test_the_feed_in_an_agent_does_not_grow_with_the_cluster_and_in_postgres_with_its_writes(times: int) -> None:
    """The more agents there are, the smaller is the part of the shards that each follows."""
    one, more = step(10, CONSTANTS), step(10 * times, CONSTANTS)
    assert more.feed_postgres_cores / one.feed_postgres_cores == pytest.approx(times, rel=0.05)
    assert more.feed_agent_cores / one.feed_agent_cores == pytest.approx(1, rel=0.05)


def test_the_feed_takes_less_than_a_fifth_of_an_agent_at_10_gb_s() -> None:
    (feed,) = [limit for limit in LIMITS if limit.name == "the feed in each agent"]
    assert feed.share(step(10, CONSTANTS)) < 0.2


def test_the_page_names_what_is_full_first() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for rate in STEPS_GB_S:
        one = step(rate, CONSTANTS)
        assert (max(limit.share(one) for limit in LIMITS) > 1) == (rate >= 100), "the page's own table says so"
        assert first_limit(one).name in text


def test_small_files_in_postgres_are_bounded_by_the_default_and_fit() -> None:
    rates = [inline_rates(rate, CONSTANTS) for rate in INLINE_MIB_S]
    assert INLINE_MIB_S[-1] * 2**20 == Settings().low_latency_max_bytes_per_second
    for name in ("files", "extents", "keys", "wal_bytes", "postgres_cores", "puts"):
        assert [getattr(each, name) for each in rates] == sorted(getattr(each, name) for each in rates), name
    assert rates[-1].held_bytes == Settings().low_latency_held_max_bytes
    assert rates[-1].postgres_cores < 2
