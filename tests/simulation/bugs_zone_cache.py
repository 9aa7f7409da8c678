"""Deliberate bugs of the file cache that the agents of a zone share."""

from __future__ import annotations

from typing import Any

from headrace.agent.fetch.zone_cache.serving import ZoneCacheServer
from headrace.agent.fetch.zone_cache.shared import Peers, SharedCache
from headrace.storage.segment.file_range import FileRange, RangeBytes
from tests.patch import Patch
from tests.simulation.bug import bug
from tests.simulation.problems import Kind


@bug("W12", Kind.CORRUPT)
def neighbours_bytes_are_believed(patch: Patch) -> None:
    """What an owner gave is passed on as if this agent had flushed it itself: no checksum is looked at."""

    async def read(self: SharedCache, wanted: FileRange, arrival: Any) -> RangeBytes:
        body: RangeBytes = await original(self, wanted, arrival)
        return body if arrival is None else body._replace(checked=True)

    original = patch.replace(SharedCache, "_read", read)


@bug("W12", Kind.INCONSISTENT, Kind.CORRUPT)
def owner_serves_another_range(patch: Patch) -> None:
    """An owner answers with bytes that it served before, if they are as many."""

    async def read(self: ZoneCacheServer, wanted: FileRange) -> memoryview | int:
        data: memoryview | int = await original(self, wanted)
        served = vars(self).setdefault("served", {})
        return data if isinstance(data, int) else served.setdefault(len(data), data)

    original = patch.replace(ZoneCacheServer, "_read", read)


@bug("W12", Kind.INCONSISTENT, Kind.CORRUPT)
def readers_of_other_bytes_share_a_call(patch: Patch) -> None:
    """Who wants as many bytes of a file as are asked for already waits for these, whichever they are."""

    def init(self: SharedCache, *args: Any) -> None:
        original(self, *args)
        careless: Any = _Careless()
        self._asked = careless

    original = patch.replace(SharedCache, "__init__", init)


class _Careless(dict[tuple[Any, int, int], Any]):
    """Finds a range by its file and length."""

    def get(self, wanted: Any, default: Any = None) -> Any:
        file_id, start, end = wanted
        alike = (key for key in self if key[0] == file_id and key[2] - key[1] == end - start)
        return super().get(next(alike, wanted), default)


@bug("W12", Kind.UNSEEN, Kind.STUCK)
def owner_is_waited_for_for_ever(patch: Patch) -> None:
    """There is no deadline: an owner that does not answer blocks other agents' readers permanently."""
    patch.wrap(
        Peers,
        "__init__",
        lambda right: lambda self, *args, **named: right(self, *args, **{**named, "timeout_ms": 10**9}),
    )
