"""A metastore's index made again from the bucket alone: what is possible after the last backup is lost.

Place: `headrace audit --rebuild-index`, on an empty metastore, while no agent runs.
Invariant: every run of a footer that can be read becomes readable, in files' order of birth; what cannot be
known is said, not guessed silently (LOST). Nothing in the bucket changes. In memory: id and size of every
object. If the process dies, format a new metastore and run it again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import NamedTuple

from compactor.audit import Progress
from compactor.listing import pages
from metastore.files import FoundFile, FoundRun
from metastore.log.image import MetadataImage
from metastore.postgres.store import PostgresMetastore
from metastore.values import NewTopic
from storage.errors import CorruptError, InvalidError, NotFoundError
from storage.file_id import object_key
from storage.objects.store import ObjectStore
from storage.segment.format import Footer
from storage.segment.reader import load_footer

FILES_PER_CALL = 64
PARALLEL = 16
LOST = (
    "offsets: they begin at 0 again, in the order in which files were born; a merged file counts as born when"
    " it was merged",
    "consumer groups' positions, which named the old offsets",
    "topic names and settings: a topic that the metastore does not know is called recovered-<its id>",
    "what commits had dropped: duplicates that lie in files are readable again",
    "what retention and DeleteRecords had removed, and the inputs of merges: readable again (twice) where their"
    " objects still exist",
    "producers' state: a retry of something stored before the rebuild is appended again",
    "access control, quotas, SCRAM credentials",
)
"""What a footer does not say."""


@dataclass(slots=True)
class Rebuilt:
    """What became of the bucket's files."""

    files: int = 0
    runs: int = 0
    body_bytes: int = 0
    topics: list[str] = field(default_factory=list)
    """Made under names of ours."""
    unsound: list[tuple[uuid.UUID, str]] = field(default_factory=list)
    """Files whose footers cannot be read, and why. Their bytes are not touched."""
    homeless: int = 0
    """Runs of partitions beyond what their topic has here."""


class _Object(NamedTuple):
    file_id: uuid.UUID
    size: int


async def rebuild_index(metastore: PostgresMetastore, store: ObjectStore, on_progress: Progress) -> Rebuilt:
    """Name every file of the bucket. InvalidError unless the metastore names none."""
    if (await metastore.file_totals()).total:
        raise InvalidError("the metastore names segment files already: an index is rebuilt in a new, formatted one")
    found = Rebuilt()
    objects = sorted(
        [_Object(file_id, info.size) async for page in pages(store) for file_id, info in page.files.items()]
    )
    counts: dict[uuid.UUID, int] = {}
    async for _, footer in _footers(store, objects, found.unsound):
        for entry in footer.partitions:
            counts[entry.topic_id] = max(counts.get(entry.topic_id, 0), entry.partition_index + 1)
    image = await _with_topics(metastore, counts, found)
    batch: list[FoundFile] = []
    async for stored, footer in _footers(store, objects, []):
        batch.append(_found_file(image, stored, footer, found))
        if len(batch) == FILES_PER_CALL:
            await _name(metastore, batch, found)
            on_progress("files", found.files, len(objects))
            batch = []
    await _name(metastore, batch, found)
    await metastore.begin_incarnation()
    return found


async def _footers(
    store: ObjectStore, objects: list[_Object], unsound: list[tuple[uuid.UUID, str]]
) -> AsyncIterator[tuple[_Object, Footer]]:
    """In the order of `objects`, some read side by side; what cannot be read goes to `unsound`."""
    for start in range(0, len(objects), PARALLEL):
        window = objects[start : start + PARALLEL]
        reads = (load_footer(store, object_key(stored.file_id), stored.size) for stored in window)
        for stored, footer in zip(window, await asyncio.gather(*map(_sound, reads)), strict=True):
            if isinstance(footer, Footer):
                yield stored, footer
            else:
                unsound.append((stored.file_id, str(footer)))


async def _sound(read: Awaitable[Footer]) -> Footer | CorruptError | NotFoundError:
    try:
        return await read
    except (CorruptError, NotFoundError) as error:
        return error


async def _with_topics(metastore: PostgresMetastore, counts: dict[uuid.UUID, int], found: Rebuilt) -> MetadataImage:
    """The image once every topic of the files is there."""
    image = await metastore.load_image()
    missing = [
        NewTopic(f"recovered-{topic_id}", topic_id, count, {})
        for topic_id, count in sorted(counts.items())
        if topic_id not in image.topics_by_id
    ]
    if missing and not await metastore.create_topics(image.offset, missing):
        raise InvalidError("the metadata log moved: somebody else uses this metastore")
    found.topics = [topic.name for topic in missing]
    return await metastore.load_image()


def _found_file(image: MetadataImage, stored: _Object, footer: Footer, found: Rebuilt) -> FoundFile:
    runs = []
    for entry in footer.partitions:
        key = image.topics_by_id[entry.topic_id].key(entry.partition_index)
        if key is None:
            found.homeless += 1
        else:
            runs.append(FoundRun(key, entry.position, entry.length, entry.record_count, entry.max_timestamp))
    return FoundFile(stored.file_id, stored.size, runs)


async def _name(metastore: PostgresMetastore, files: list[FoundFile], found: Rebuilt) -> None:
    runs = [run for file in files for run in file.runs]
    if runs:
        found.files += await metastore.rebuild_files(files)
        found.runs += len(runs)
        found.body_bytes += sum(run.length for run in runs)
