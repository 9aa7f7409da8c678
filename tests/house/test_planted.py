"""A planted bug counts as found only if what it replaces was called."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.planted import PlantedBugs, Trial


class Sum:
    """What the bugs of this test are in."""

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def doubled(self) -> int:
        return self.plus(self.number)

    def plus(self, more: int) -> int:
        return self.number + more

    @staticmethod
    def zero() -> int:
        return 0

    async def later(self) -> int:
        return self.number


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Trial:
    """A bug with a recorded seed."""
    monkeypatch.setattr("tests.planted.recorded", lambda: {"sums": {"wrong": 3}})
    return Trial(PlantedBugs("sums"), "wrong")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("plus", lambda self, more: -1),
        ("doubled", property(lambda self: -1)),
        ("zero", staticmethod(lambda: -1)),
    ],
)
def test_a_bug_that_is_called_is_shown(found: Trial, name: str, wrong: object) -> None:
    with found.begun(lambda *_: None) as trial:
        trial.plant(Sum, name, wrong)
        for seed in trial.seeds():
            with trial.shown_by(AssertionError):
                assert (Sum(seed).plus(1), Sum(seed).doubled, Sum.zero()) == (4, 6, 0)
    assert (Sum(3).plus(1), Sum(3).doubled, Sum.zero()) == (4, 6, 0), "it is taken out again"


async def test_a_bug_in_a_coroutine_stays_one(found: Trial) -> None:
    async def wrong(self: Sum) -> int:
        return -1

    with found.begun(lambda *_: None) as trial:
        trial.plant(Sum, "later", wrong)
        for seed in trial.seeds():
            trial.saw(await Sum(seed).later() == -1)


def test_a_failure_that_no_planted_code_caused_is_not_the_bug(found: Trial) -> None:
    with found.begun(lambda *_: None) as trial:
        trial.plant(Sum, "zero", staticmethod(lambda: -1))
        seeds = trial.seeds()
        trial.saw(Sum(next(seeds)).doubled == 6)
        with pytest.raises(pytest.fail.Exception, match=r"never called: \['Sum\.zero'\]"):
            next(seeds)


def test_another_failure_than_the_told_one_is_not_the_bug(found: Trial) -> None:
    with found.begun(lambda *_: None) as trial:
        seeds = trial.seeds()
        next(seeds)
        with trial.shown_by(AssertionError, told="wrong sum"):
            raise AssertionError("other")
        with pytest.raises(pytest.fail.Exception, match="AssertionError: other"):
            next(seeds)


def test_what_replaces_itself_is_refused(found: Trial) -> None:
    product = SimpleNamespace(limit=7)
    with found.begun(lambda *_: None) as trial, pytest.raises(AssertionError, match="patches nothing"):
        trial.plant(product, "limit", product.limit)
