"""What the driver asks of a session of Spark, with tasks that run in its own process, one after the other: no JVM."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any


class LocalTasks:
    """What the driver uses of a session, of its context, and of what that makes.

    `rng`: an executor is lost at times, so that some groups read what the tasks before them made a second time.
    """

    def __init__(self, work: Iterable[Callable[[], Any]] = (), rng: random.Random | None = None) -> None:
        self._work, self._rng = list(work), rng

    @property
    def sparkContext(self) -> LocalTasks:
        return self

    def parallelize(self, items: Iterable[Any], slices: int) -> LocalTasks:
        return self._next([lambda item=item: item for item in items])  # type: ignore[misc]

    def map(self, change: Callable[[Any], Any]) -> LocalTasks:
        return self._next([lambda each=each: change(each()) for each in self._work])  # type: ignore[misc]

    def flatMap(self, change: Callable[[Any], Iterable[Any]]) -> LocalTasks:
        return self._next([lambda each=each: _Several(change(each())) for each in self._work])  # type: ignore[misc]

    def groupByKey(self, partitions: int) -> LocalTasks:
        groups: dict[Any, list[Any]] = {}
        for key, value in self.collect():
            groups.setdefault(key, []).append(value)
        if self._rng is not None and self._rng.random() < 0.4:
            again: dict[Any, list[Any]] = {}
            for key, value in self.collect():
                again.setdefault(key, []).append(value)
            groups = {key: again.get(key, []) if self._rng.random() < 0.5 else found for key, found in groups.items()}
        return self._next([lambda each=each: each for each in groups.items()])  # type: ignore[misc]

    def collect(self) -> list[Any]:
        found = []
        for each in self._work:
            made = each()
            found += made if isinstance(made, _Several) else [made]
        return found

    def _next(self, work: Iterable[Callable[[], Any]]) -> LocalTasks:
        return LocalTasks(work, self._rng)


class _Several(list[Any]):
    """Results of one task, each of which is an item."""
