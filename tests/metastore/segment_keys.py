"""Clusters before and after remote.log.metadata.compaction: most tests run on one that does not have it yet."""

from __future__ import annotations

from typing import Any

import psycopg

from headrace.metastore.api.agents import SEGMENT_KEYS


def before_keys(url: str) -> None:
    """Do the same as if the cluster was made by an older version: neither its log nor its projection has the
    feature.
    """
    with psycopg.connect(url) as connection:
        connection.execute("DELETE FROM features WHERE name = %s", (SEGMENT_KEYS,))
        found: Any = connection.execute(
            "DELETE FROM metadata_log WHERE position(%s IN record) > 0 RETURNING record_offset",
            (SEGMENT_KEYS.encode(),),
        ).fetchall()
        ((offset,),) = found
        connection.execute("UPDATE metadata_log SET record_offset = -record_offset WHERE record_offset > %s", (offset,))
        connection.execute("UPDATE metadata_log SET record_offset = -record_offset - 1 WHERE record_offset < 0")
        connection.execute("UPDATE metadata_head SET next_offset = next_offset - 1")


def with_keys(url: str) -> None:
    """From now on merged files have keys."""
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO features VALUES (%s, 1, 1) ON CONFLICT DO NOTHING", (SEGMENT_KEYS,))
