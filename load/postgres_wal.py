"""The write-ahead log of a Postgres by table, from pg_waldump on the directory of a running server.

Invariant: nothing is counted twice: a record is of the table that it names first, with its TOAST table and its indexes.
A record that names none (ends of transactions, slots that are emptied), or one that is gone by now, is `OTHER`.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter

import psycopg

from headrace.metastore.postgres.installation import find_installation

OTHER = "other"
_RECORD = re.compile(r"len \(rec/tot\):\s*\d+/\s*(\d+),.*?(?:rel \d+/\d+/(\d+)|$)")
_NUMBERED = re.compile(r"_\d+$")
_OWNERS = """
SELECT c.relfilenode, coalesce(owner_of_toast.relname, owner.relname, c.relname)
  FROM pg_class c
  LEFT JOIN pg_index i ON i.indexrelid = c.oid
  LEFT JOIN pg_class owner ON owner.oid = i.indrelid
  LEFT JOIN pg_class owner_of_toast ON owner_of_toast.reltoastrelid IN (c.oid, i.indrelid)
 WHERE c.relfilenode <> 0
"""


def wal_position(url: str) -> str:
    """Return where the log ends now."""
    with psycopg.connect(url, autocommit=True) as connection:
        (row,) = connection.execute("SELECT pg_current_wal_lsn()::text").fetchall()
    return str(row[0])


def wal_by_table(url: str, start: str, end: str) -> Counter[str]:
    """Return bytes of log between two positions by table; partitions of a table (`_3`) count together."""
    with psycopg.connect(url, autocommit=True) as connection:
        owners: dict[int, str] = dict(connection.execute(_OWNERS).fetchall())
        (row,) = connection.execute("SHOW data_directory").fetchall()
    program = find_installation().bin_dir / "pg_waldump"
    dumped = subprocess.run(
        [program, "-p", f"{row[0]}/pg_wal", "-s", start, "-e", end],
        stdout=subprocess.PIPE, text=True, check=True, errors="replace",
    )  # fmt: skip
    return sums(dumped.stdout, {str(node): _NUMBERED.sub("", name) for node, name in owners.items()})


def sums(dumped: str, owners: dict[str, str]) -> Counter[str]:
    """Sum the bytes of pg_waldump's lines. `owners`: tables by file node. Pure."""
    found: Counter[str] = Counter()
    for line in dumped.splitlines():
        if match := _RECORD.search(line):
            found[owners.get(match[2] or "", OTHER)] += int(match[1])
    return found
