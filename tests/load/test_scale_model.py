"""The scale model: its page is up to date, and its sums behave as sums of these parts do."""

from __future__ import annotations

import pytest

from headrace.cli.cost.data import measured
from load.scale_model import LIMITS, PAGE, STEPS_GB_S, first_limit, page, step

CONSTANTS = measured()


def test_the_page_shows_the_model_of_now() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "python -m load.scale_model --page"


def test_each_part_is_fuller_the_more_is_written() -> None:
    steps = [step(rate, CONSTANTS) for rate in STEPS_GB_S]
    for limit in LIMITS:
        shares = [limit.share(one) for one in steps]
        assert shares == sorted(shares), limit.name


@pytest.mark.parametrize("times", [2, 10])
def test_the_feed_in_postgres_grows_with_writes_and_with_agents(times: int) -> None:
    one, more = step(10, CONSTANTS), step(10 * times, CONSTANTS)
    agents = more.need.agents / one.need.agents
    assert more.feed_postgres_cores / one.feed_postgres_cores == pytest.approx(times * agents)
    assert more.feed_agent_cores / one.feed_agent_cores == pytest.approx(times)


def test_the_page_names_what_is_full_first() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for rate in STEPS_GB_S:
        one = step(rate, CONSTANTS)
        assert (max(limit.share(one) for limit in LIMITS) > 1) == (rate >= 10), "the page's own table says so"
        assert first_limit(one).name in text
