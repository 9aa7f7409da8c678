"""The log as bucket and metastore hold it, each byte where its file's id says, read by a reader that shares no code
with the read path."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.metastore.api.read import Extent
from headrace.storage.records.header import HEADER_BYTES, read_header
from tests.simulation.messages import Batch
from tests.simulation.metadata import Place
from tests.simulation.problems import Kind, Problem
from tests.simulation.reading import Entry, entry_of

if TYPE_CHECKING:
    from tests.simulation.world import World


class StoredLog(NamedTuple):
    """Existing partitions of topics that are not compacted, with the batches below the log start.

    `found`: the place of each batch.
    """

    entries: dict[Place, list[Entry]]
    found: dict[tuple[Batch, Place], list[Entry]]


def read_stored_logs(world: World, problems: list[Problem]) -> StoredLog:
    """All partitions, extent by extent; what cannot be read so is a problem."""
    log = StoredLog({}, {})
    for topic in world.metadata.living():
        if topic.is_compacted:  # see keyed.py
            continue
        for place in topic.places():
            entries = list(world.database.removed[place])
            for extent in world.database.model.partitions[place.key].extents:
                entries += read_extent(world, place, extent, problems)
            log.entries[place] = entries
            for entry in entries:
                log.found.setdefault((entry.batch, place), []).append(entry)
    return log


def read_extent(world: World, place: Place, extent: Extent, problems: list[Problem]) -> list[Entry]:
    """The batches of one extent."""
    where = f"{place} offsets={extent.base_offset}-{extent.last_offset} file={extent.file_id}"
    body = world.database.bytes_of(extent.source)
    if body is None or len(body) < extent.position + extent.length:
        problems.append(Problem(Kind.UNACCOUNTED, f"extent without its bytes: {where}"))
        return []
    data = memoryview(body)[extent.position : extent.position + extent.length]
    entries: list[Entry] = []
    at, offset = 0, extent.base_offset
    while len(data) - at >= HEADER_BYTES:
        header = read_header(data, at)
        members = world.messages.open(data[at : at + header.size])
        if not members:
            problems.append(Problem(Kind.UNACCOUNTED, f"extent holds what no producer sent: {where} at={at}"))
            return entries
        entries += [entry_of(world, member, header, offset) for member in members]
        at += header.size
        offset += header.last_offset_delta + 1
    if at != len(data) or offset != extent.last_offset + 1:
        problems.append(Problem(Kind.UNACCOUNTED, f"extent is not its batches: {where} ends at {offset}"))
    return entries
