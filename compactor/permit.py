"""Decides whether objects may be deleted: not after a restore of the metastore, until an audit allows it.

Place: called at the beginning of every job that deletes objects. Retention, janitor and sweeper also ask which
deletions wait for the cluster's value of a setting.
Invariant: the metastore counts generations of deletion, and the bucket stores the highest number and the metastore's
incarnation id (object `janitor.properties`). The metastore increments before the bucket's object is written, so
within one incarnation the bucket is never ahead. After a restore it is: the metastore has another incarnation id, or
a lower number. Then files that were committed after the backup look like orphans, and no object may be deleted.
After a crash between the two writes the bucket is behind, which does not count as a restore.
Invariant of deletions that wait: two workers with different files never delete by different rules. Until the cluster
has a value of the setting, what needs it deletes nothing (docs/decisions/0033-one-value-per-cluster.md).
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge

from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.api.files import FileApi, JanitorState
from headrace.metastore.api.jobs import JobToken
from headrace.storage.errors import CorruptError, NotFoundError
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

OBJECT_KEY = "janitor.properties"
VERSION = "1"


@dataclass(frozen=True, slots=True)
class Mark:
    """The content of the bucket's object."""

    incarnation_id: uuid.UUID
    generation: int

    def render(self) -> bytes:
        """The object's bytes."""
        return f"generation={self.generation}\nincarnation.id={self.incarnation_id}\nversion={VERSION}\n".encode()

    @classmethod
    def parse(cls, data: bytes) -> Mark:
        """CorruptError unless these are the bytes of a mark of this version."""
        try:
            values = dict(line.split("=", 1) for line in data.decode().splitlines())
            if values["version"] != VERSION:
                raise CorruptError(f"{OBJECT_KEY} has an unknown version: {values['version']}")
            return cls(uuid.UUID(values["incarnation.id"]), int(values["generation"]))
        except (KeyError, ValueError) as error:
            raise CorruptError(f"{OBJECT_KEY} is damaged: {error!r}") from error


async def read_mark(store: ObjectStore) -> Mark | None:
    """The bucket's mark; None before the first deletion."""
    try:
        return Mark.parse(await store.get(OBJECT_KEY))
    except NotFoundError:
        return None


async def write_mark(store: ObjectStore, mark: Mark) -> None:
    """Replace the bucket's mark."""
    await store.put(OBJECT_KEY, mark.render())


def refusal(state: JanitorState, mark: Mark | None) -> str:
    """The reason why nothing may be deleted; empty if deletion is allowed."""
    if mark is None:
        return "" if state.generation == 0 else "the bucket lost its mark"
    if mark.incarnation_id != state.incarnation_id:
        return "the metastore and the bucket have different incarnation ids"
    if mark.generation > state.generation:
        return "the metastore is behind the bucket: it was restored from a backup"
    return ""


async def permit(api: FileApi, store: ObjectStore, token: JobToken) -> uuid.UUID | None:
    """The incarnation id for the deletion; None, with a log line, if nothing may be deleted."""
    state, mark = await api.janitor_state(), await read_mark(store)
    reason = refusal(state, mark)
    if reason:
        logger.error("deletion is stopped until `headrace audit --resume-janitor`: reason=%s", reason)
        return None
    if mark is None:  # before the metastore increments: a later missing mark was lost
        await write_mark(store, Mark(state.incarnation_id, state.generation))
    generation = await api.begin_generation(token, state.incarnation_id)
    await write_mark(store, Mark(state.incarnation_id, generation))
    return state.incarnation_id


FILE_DELETE_DELAY = "file.delete.delay.ms"


class Undecided:
    """Says what waits: a metric, and a log line when it begins and when it ends."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._waiting: dict[tuple[str, str], bool] = {}
        self._gauge = Gauge(
            "headrace_deletion_waits",
            "1 while this process deletes nothing of a kind because the cluster has no value of the setting yet",
            ["job", "setting"],
            registry=registry,
        )

    def show(self, job: str, setting: str, *, waits: bool) -> None:
        """Show whether this kind of job waits for the setting."""
        if waits and not self._waiting.get((job, setting)):
            logger.warning(
                "nothing is deleted until the cluster has a value: job=%s setting=%s; decide with"
                " `headrace configs set %s=... --brokers`",
                job,
                setting,
                setting,
            )
        elif not waits and self._waiting.get((job, setting)):
            logger.info("the cluster has a value, deletion goes on: job=%s setting=%s", job, setting)
        self._waiting[job, setting] = waits
        self._gauge.labels(job, setting).set(waits)

    async def has_delay(self, job: str, api: ClusterApi) -> bool:
        """Return whether the cluster has a value of file.delete.delay.ms; one query."""
        waits = FILE_DELETE_DELAY not in await api.cluster_configs()
        self.show(job, FILE_DELETE_DELAY, waits=waits)
        return not waits
