"""How many rows clients caused: counted while tables are small, estimated once they are large."""

from __future__ import annotations

import pytest

from headrace.metastore.api.groups import CommittedOffset
from headrace.metastore.api.housekeeping import RowCounts
from headrace.metastore.api.transactions import NO_PRODUCER
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.commit_scenes import batch, open_scene
from tests.metastore.sessions import Session, join, rows

pytestmark = pytest.mark.requirement("X7")
LARGE = """INSERT INTO transactions
       (transactional_id, producer_id, producer_epoch, state, timeout_ms, previous_producer_id, previous_epoch, groups,
        version, changed_at)
    SELECT 'id-' || n || repeat('x', 250), n, 0, 0, 1, -1, -1, '{}', 1, wall_time()
      FROM generate_series(100001, 135000) AS n"""


async def test_small_tables_are_counted(metastore: PostgresMetastore) -> None:
    scene = await open_scene(metastore, partitions=2)
    before = await metastore.housekeeping.client_rows()
    assert before == RowCounts(0, 0, 0)
    await scene.outcomes(*(batch(scene.keys[0], 0, producer=producer) for producer in range(1_000, 1_005)))
    await scene.outcomes(batch(scene.keys[1], 0, producer=1_000))
    for name in ("a", "b", "a"):
        await metastore.transactions.init_producer(name, 60_000, NO_PRODUCER, {"a": 7, "b": 8}[name])
    claim = await metastore.groups.claim_group("g", *await join(metastore))
    assert claim is not None
    offsets = [CommittedOffset(key, 5, -1, "") for key in scene.keys]
    assert await metastore.groups.commit_offsets("g", claim.coordinator_epoch, offsets) == [True, True]
    assert await metastore.housekeeping.client_rows() == RowCounts(2, 6, 3), "two offsets and their group"


@pytest.mark.own_database
async def test_a_large_table_is_estimated_without_being_read(metastore: PostgresMetastore, raw: Session) -> None:
    await raw.execute(LARGE)
    await raw.execute("VACUUM ANALYZE transactions")
    ((size,),) = await rows(raw, "SELECT pg_relation_size('transactions')")
    assert size > 16 * 1024 * 1024
    assert 33_000 < (await metastore.housekeeping.client_rows()).transactional_ids < 37_000
