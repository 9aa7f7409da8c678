"""A process learns of each change of its life of the metastore, and a broker acts on it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.serve.broker import Broker
from headrace.agent.serve.paths import RequestPaths
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.numbers import NO_LIFE
from headrace.metastore.life.verdict import LifeVerdict
from headrace.metastore.life.watch import CHECK_SECONDS, LifeWatch
from tests.manual_clock import ManualClock


class Keeper:
    """Each check finds the next life of a list; NO_LIFE: the server is not the metastore."""

    def __init__(self, lives: list[int]) -> None:
        self._lives = iter(lives)
        self.life = NO_LIFE
        self.verdict = LifeVerdict.CURRENT

    async def check(self) -> LifeVerdict:
        self.life = next(self._lives)
        self.verdict = LifeVerdict.SUPERSEDED if self.life == NO_LIFE else LifeVerdict.CURRENT
        return self.verdict


@pytest.mark.parametrize(
    ("lives", "told"),
    [
        ([0, 0, 0], []),
        ([0, 1, 1], [True]),
        ([0, 1, 2], [True, True]),
        ([0, NO_LIFE, NO_LIFE, 1], [False, True]),
        ([NO_LIFE, NO_LIFE, 1], [False, True]),
        ([0, NO_LIFE, 0], [False, True]),
    ],
)
async def test_a_change_of_life_is_reported_once(lives: list[int], told: list[bool]) -> None:
    clock, heard = ManualClock(), list[bool]()
    watch = LifeWatch(cast(LifeKeeper, Keeper(lives)), clock, CollectorRegistry(), lambda: False, heard.append)
    await watch.start()
    for _ in lives[1:]:
        await clock.advance(CHECK_SECONDS)
    assert heard == told
    await watch.stop()


def _broker(paths: Any) -> Any:
    return SimpleNamespace(_listener=Mock(), _paths=paths)


def test_a_broker_begins_a_life_in_all_paths_and_serves() -> None:
    broker = _broker(Mock())
    Broker.life_changed(broker, True)
    broker._listener.suspend.assert_called_once_with(False)
    broker._paths.life_begins.assert_called_once_with()
    paths = Mock()
    RequestPaths.life_begins(paths)
    paths.fetch.life_begins.assert_called_once_with()
    paths.produce.life_begins.assert_called_once_with()
    paths._groups.share_owner.life_begins.assert_called_once_with()


def test_a_broker_that_is_not_in_the_present_life_accepts_no_connection() -> None:
    for paths in (None, Mock()):
        broker = _broker(paths)
        Broker.life_changed(broker, False)
        broker._listener.suspend.assert_called_once_with(True)
    broker._paths.life_is_over.assert_called_once_with()
    broker._paths.life_begins.assert_not_called()
    RequestPaths.life_is_over(paths)
    paths.fetch.life_is_over.assert_called_once_with()
    paths._groups.share_owner.record_answered.assert_called_once_with()
