"""Runs a streaming query to its end, also where Spark gives up on its own worker.

Invariant: a query is started again only after Spark says that its Python worker did not connect within the 10 seconds
that Spark fixes (PythonWorkerFactory): it had read and written nothing since its checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SPARK_SECONDS = 600
_NOT_CONNECTED = "Python worker failed to connect back"


def run_to_end(start: Callable[[], Any]) -> Any:
    """Start the query, again where its worker was too slow for Spark, and wait for its end; the query."""
    from pyspark.errors import StreamingQueryException

    until = time.monotonic() + SPARK_SECONDS
    while True:
        query = start()
        try:
            assert query.awaitTermination(SPARK_SECONDS)
        except StreamingQueryException as error:
            if _NOT_CONNECTED not in str(error) or time.monotonic() > until:
                raise
        else:
            return query
