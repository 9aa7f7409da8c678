"""What the bucket says of the newest backup of the metastore: when it was taken, and by what.

Place: written by `headrace backup`, read by `headrace doctor` and by the process that is the active controller
(metastore/upkeep_watch.py).
Invariant: the record is in the bucket, not in Postgres: a Postgres that is lost cannot say how old its backup is. It
never names a time before which the backup began, and an older backup never replaces a newer one.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

from headrace.storage.errors import CorruptError, NotFoundError
from headrace.storage.objects.store import ObjectStore

KEY = "metastore/backup.json"


class BackupKind(enum.StrEnum):
    """What can be restored."""

    DUMP = "dump"
    """pg_dump: the time at which it began."""
    BASE = "base"
    """pg_basebackup and a WAL archive: any time up to the newest archived WAL."""
    SNAPSHOT = "snapshot"
    """A snapshot of the volume, or of the managed service: the time at which it began."""


class BackupRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """The newest backup. `began_ms`: milliseconds since the epoch, by the clock of the machine that took it."""

    kind: BackupKind
    began_ms: int
    place: str = ""
    """The place where it is, for people."""


class WalArchive(NamedTuple):
    """What the server says of its WAL archive. `age_s`: of the newest archived segment; None if there is none."""

    is_on: bool
    age_s: float | None
    is_failing: bool
    """Whether the last attempt failed."""


async def read_backup(store: ObjectStore) -> BackupRecord | None:
    """Return None if none was recorded."""
    try:
        return msgspec.json.decode(await store.get(KEY), type=BackupRecord)
    except NotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise CorruptError(f"the bucket's record of the newest backup is damaged: key={KEY} {error}") from error


async def record_backup(store: ObjectStore, record: BackupRecord) -> bool:
    """Return whether it is the newest one now; nothing is written if a newer one is recorded."""
    before = await read_backup(store)
    if before is not None and before.began_ms > record.began_ms:
        return False
    await store.put(KEY, msgspec.json.encode(record))
    return True


def backup_age_s(record: BackupRecord, archive: WalArchive, now_ms: int) -> float:
    """Return the age of what a restore would bring back: commits that are younger are lost."""
    taken_s = max(0.0, (now_ms - record.began_ms) / 1000)
    if record.kind is BackupKind.BASE and archive.is_on and archive.age_s is not None:
        return min(taken_s, max(0.0, archive.age_s))
    return taken_s


def backup_problem(record: BackupRecord | None, archive: WalArchive, now_ms: int, delay_ms: int) -> str | None:
    """Return what is wrong; None if a restore finds the objects of all files that it names.

    `delay_ms`: file.delete.delay.ms, how long the objects of dead files are kept.
    """
    if record is None:
        return "no backup of Postgres is recorded: if its disk is lost, so is the order of all records"
    age_s = backup_age_s(record, archive, now_ms)
    if age_s * 1000 <= delay_ms:
        return None
    why = "; archiving of WAL fails" if archive.is_failing else ""
    return (
        f"a restore would go back {_hours(age_s)}, and file.delete.delay.ms is {_hours(delay_ms / 1000)}:"
        f" objects of files that the backup names may be deleted{why}"
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"
