"""Expires old snapshots of a table, so that its metadata, which each commit writes again, does not grow without an end.

    old snapshots -> one commit: assert main's snapshot, remove them -> delete what only they had

Place: the last step of upkeep (upkeep/steps.py), and `headrace tables delete-rows --expire-snapshots`. Blocks.
Invariant: the current snapshot, the one that the offsets name (state.py), those between them, and what a branch or a
tag has are kept. A file is deleted only after the catalog has removed every snapshot that had it; what a worker that is
killed in between leaves are orphans. A commit that continues a removed snapshot fails, because that is not the current
one.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate

from headrace.tables.catalog import name_of, translated
from headrace.tables.commit.committing import remove_files
from headrace.tables.state import PROGRESS, TableProgress

MAIN = "main"


def expire(table: Table, before_ms: int) -> int:
    """Expire what was replaced and is older than that; how many snapshots. UnavailableError: perhaps, try again."""
    kept = _kept(table)
    old = [each for each in table.metadata.snapshots if each.snapshot_id not in kept and each.timestamp_ms < before_ms]
    current = table.metadata.current_snapshot_id
    if not old or current is None:
        return 0
    with translated(f"table {name_of(table)}"):
        files = _files_of(table, old)
        requirements = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertRefSnapshotId(ref=MAIN, snapshot_id=current),  # type: ignore[call-arg]
        )
        update = RemoveSnapshotsUpdate(snapshot_ids=[each.snapshot_id for each in old])  # type: ignore[call-arg]
        try:
            left = table.catalog.commit_table(table, requirements, (update,)).metadata
        except (CommitFailedException, ValueError):
            return 0  # it changed meanwhile; the second is pyiceberg's, for a snapshot that another worker expired
        gone = {each.snapshot_id for each in old}
        files -= _files_of(table, [each for each in left.snapshots if each.snapshot_id not in gone])
        remove_files(table.io, files, "file of an expired snapshot")
    return len(old)


def _kept(table: Table) -> set[int]:
    """The snapshots that are named, the ancestors of those of branches and tags other than main, and what is between
    the one that the offsets name and the current one: without it they would not be each other's (pyiceberg removes
    the parent ids of what it expires).
    """
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    if (text := table.properties.get(PROGRESS)) is not None:
        own = TableProgress.of(text).snapshot_id
        kept.add(own)
        each = table.metadata.current_snapshot()
        between = set()
        while each is not None and each.snapshot_id != own:
            between.add(each.snapshot_id)
            each = table.metadata.snapshot_by_id(each.parent_snapshot_id or 0)
        kept |= between if each is not None else set()
    for name, ref in table.metadata.refs.items():
        each = None if name == MAIN else table.metadata.snapshot_by_id(ref.snapshot_id)
        while each is not None:
            kept.add(each.snapshot_id)
            parent = each.parent_snapshot_id
            each = None if parent is None else table.metadata.snapshot_by_id(parent)
    return kept


def _files_of(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Manifest lists, manifests and data files of these snapshots."""
    found: set[str] = set()
    manifests: dict[str, ManifestFile] = {}
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        manifests |= {each.manifest_path: each for each in snapshot.manifests(table.io)}
    for path, manifest in manifests.items():
        found.add(path)
        found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    return found
