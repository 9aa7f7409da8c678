"""What the driver asks of a session of Spark, with tasks that run in its own process, one after the other: no JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class LocalTasks:
    """What the driver uses of a session, of its context, and of what that makes."""

    def __init__(self, work: Iterable[Callable[[], Any]] = ()) -> None:
        self._work = list(work)

    @property
    def sparkContext(self) -> LocalTasks:
        return self

    def parallelize(self, items: Iterable[Any], slices: int) -> LocalTasks:
        return LocalTasks([lambda item=item: item for item in items])  # type: ignore[misc]

    def map(self, change: Callable[[Any], Any]) -> LocalTasks:
        return LocalTasks([lambda each=each: change(each()) for each in self._work])  # type: ignore[misc]

    def collect(self) -> list[Any]:
        return [each() for each in self._work]
