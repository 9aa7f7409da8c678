"""How many extents a topic has, for `headrace bench`.

Place: apart from PostgresMetastore, because the bench also measures other versions, with older or newer schemas.
Invariant: reads only.
"""

from __future__ import annotations

import psycopg

from headrace.metastore.postgres.address import parsed
from headrace.metastore.postgres.reports.report_query import ReportQuery

_COUNT_TOPIC_EXTENTS = ReportQuery("count_topic_extents")


def count_topic_extents(url: str, topic: str) -> int:
    """Extents of the topic's partitions now, over a separate connection."""
    parsed(url)
    with psycopg.connect(url) as connection:
        row = connection.execute(_COUNT_TOPIC_EXTENTS.sql, {"topic": topic}).fetchone()
    assert row is not None
    return int(row[0])
