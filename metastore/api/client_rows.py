"""How many rows clients have made the metastore keep, for limits on new ones.

Place: asked by each agent about once a minute (agent/limits/client_rows.py).
Invariant: the numbers are about right: no table is counted as a whole while it is large.
"""

from __future__ import annotations

from typing import NamedTuple


class RowCounts(NamedTuple):
    """Rows of the whole cluster. `producer_states`: one for each producer and partition; `committed_offsets`: those,
    and groups."""

    transactional_ids: int
    producer_states: int
    committed_offsets: int
