"""The commands that an operator gives after Postgres lost rows, straight to Postgres and bucket, past the proxies.

Invariant: a command that fails, where it must not, raises with what it printed. Exit status 1 of `audit --lost` means
that records are listed, not that it failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.metastore.keys import split_partition_key
from headrace.storage.records.codec import decode_records
from headrace.storage.segment.reader import verify_segment, walk_batches
from load.agent_child import flags
from tests.torture.checker import Name, Read
from tests.torture.servers import CREDENTIALS

ATTEMPTS = 5
"""Attempts of a command that loses races against other processes."""


@dataclass
class LostReport:
    """What `headrace audit --lost` lists. `names`: the records in the files that it exports."""

    files: int = 0
    records: int = 0
    certain: int = 0
    """Number of records with known offsets."""
    nowhere: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(partition, offset) of records of which no bytes are left, each as often as it is listed."""
    names: set[Name] = field(default_factory=set)
    committed_ends: list[tuple[int, int]] = field(default_factory=list)
    """(partition key, offset) of the lost ends of transactions that had committed."""

    def listed(self, acknowledged: Mapping[Name, int], read: Sequence[Read]) -> set[Name]:
        """Return the records in the files, and for each listing of an offset without bytes one that was acknowledged
        there and is not read."""
        found, left = set(self.names), self.nowhere.copy()
        there = {each.value for each in read}
        for name, offset in acknowledged.items():
            is_missing = name not in found and name.value() not in there
            if is_missing and left[place := (name.partition, offset)] > 0:
                left[place] -= 1
                found.add(name)
        return found


class Commands:
    """`bucket`: the settings of the bucket and its S3 server; `directory`: for exported files."""

    def __init__(self, bucket: Mapping[str, object], directory: Path) -> None:
        self._bucket = bucket
        self._directory = directory

    async def format(self, url: str, cluster_id: str) -> None:
        """Format the bucket for the cluster that the metastore has."""
        await self._insist("storage", "format", "--ignore-formatted", "--cluster-id", cluster_id, url=url)

    async def migrate_restored(self, url: str) -> None:
        """Say that this server is the metastore from now on, although the agents are running."""
        await self._insist("migrate", "--restored", "--force", url=url)

    async def audit(self, url: str) -> dict[str, Any]:
        """The findings of the audit after which objects are deleted again, also the only copies of lost records."""
        words = ("audit", "--resume-janitor", "--yes", "--json")
        found: dict[str, Any] = json.loads(await self._insist(*words, url=url, fine=1))
        return found

    async def audit_deep(self, url: str) -> list[dict[str, Any]]:
        """List what differs between metastore and bucket, with every byte of every live file read."""
        found = json.loads(await self._insist("audit", "--deep", "--json", url=url, fine=1))
        violations: list[dict[str, Any]] = found["violations"]
        return violations

    async def lost(self, url: str) -> LostReport:
        """Return what the promotions and restores so far have lost."""
        directory = self._directory / "lost"
        printed = await self._insist("audit", "--lost", "--json", "--export", str(directory), url=url, fine=1)
        if not printed.startswith("{"):
            return LostReport()  # it says that nothing is lost
        found = json.loads(printed)
        report = LostReport(len(found["files"]))
        report.records = sum(partition["records"] for partition in found["partitions"])
        report.committed_ends = [
            (end["partition_key"], end["offset"]) for end in found["transaction_ends"] if end["marker"][2]
        ]
        for place in found["nowhere"]:
            _, partition = split_partition_key(place["partition_key"])
            report.nowhere.update((partition, at) for at in range(place["base_offset"], place["last_offset"] + 1))
        report.certain = sum(partition["certain_records"] for partition in found["partitions"])
        for path in directory.glob("*.segment"):
            report.names |= await asyncio.to_thread(_names_in, path.read_bytes())
        return report

    async def _insist(self, *words: str, url: str, fine: int = 0) -> str:
        """Standard output; `fine`: the highest exit status that is no failure."""
        for _ in range(ATTEMPTS):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "headrace.cli.main", *words, *flags({"metastore.url": url, **self._bucket}),
                env=os.environ | CREDENTIALS, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            out, err = await process.communicate()
            if process.returncode is not None and 0 <= process.returncode <= fine:
                return out.decode()
        raise RuntimeError(f"headrace {' '.join(words)} failed: {err.decode()[-2000:]}")


def _names_in(segment: bytes) -> set[Name]:
    """Return the names of every record of a segment file, whichever of its batches were committed."""
    names = set()
    for entry in verify_segment(segment).partitions:
        for position, header in walk_batches(memoryview(segment)[entry.position : entry.position + entry.length]):
            start = entry.position + position
            for record in decode_records(memoryview(segment)[start : start + header.size]):
                names.add(Name.of((record.value or b"").decode()))
    return names
