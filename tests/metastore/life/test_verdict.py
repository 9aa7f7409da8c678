"""Check which server is the metastore: the whole table of what server, row and bucket can say of each other."""

from __future__ import annotations

import uuid
from dataclasses import replace

import msgspec
import pytest

from headrace.metastore.api.life import Server, ServerLife
from headrace.metastore.life.bucket import LifeRecord, Position
from headrace.metastore.life.numbers import LIFE_MAX, epoch_floor, life_of_offset, log_floor
from headrace.metastore.life.verdict import LifeVerdict, judge
from headrace.storage.errors import InvalidError

HERE, ELSEWHERE = uuid.UUID(int=1), uuid.UUID(int=2)
SERVER = Server(7, 3)
PRIMARY = ServerLife("c", 4, HERE, SERVER, SERVER, wal_bytes=1_000, feed_sum=50, metadata_head=600, flushed_bytes=1_000)
IN_60 = replace(PRIMARY, server=Server(7, 3, 60))
PREPARED = replace(PRIMARY, server=Server(7, 4))
RECORD = LifeRecord("c", 4, HERE, 7, 3, "first", 0, wal_bytes=900, feed_sum=40)
REACHED = Position(4, 3, wal_bytes=1_000, feed_sum=50, metadata_head=600)


def newer(life: int = 5, incarnation: uuid.UUID = ELSEWHERE) -> LifeRecord:
    return LifeRecord("c", life, incarnation, 7, 4, "timeline", 0, wal_bytes=990, feed_sum=50)


def replace_timeline(record: LifeRecord, timeline: int) -> LifeRecord:
    return msgspec.structs.replace(record, timeline=timeline)


def in_database(record: LifeRecord, database: int) -> LifeRecord:
    return msgspec.structs.replace(record, database=database)


@pytest.mark.parametrize(
    ("found", "newest", "reached", "expected"),
    [
        (PRIMARY, RECORD, REACHED, LifeVerdict.CURRENT),
        (PRIMARY, RECORD, None, LifeVerdict.CURRENT),
        (replace(PRIMARY, life=0), None, None, LifeVerdict.RECORD),
        (PRIMARY, None, None, LifeVerdict.WRONG_BUCKET),
        (PRIMARY, newer(3), None, LifeVerdict.WRONG_BUCKET),
        # promoted: the last promotion wins, with any record in the bucket
        (replace(PRIMARY, server=Server(7, 4)), RECORD, REACHED, LifeVerdict.BEGIN),
        (replace(PRIMARY, server=Server(7, 4), wal_bytes=500), RECORD, REACHED, LifeVerdict.BEGIN),
        (replace(PRIMARY, server=Server(7, 4)), newer(), None, LifeVerdict.BEGIN),
        (replace(PRIMARY, life=0, server=Server(7, 4)), None, None, LifeVerdict.BEGIN),
        # but for a server that a later promotion replaced before its own life began
        (replace(PRIMARY, life=4, server=Server(7, 4)), replace_timeline(newer(), 5), None, LifeVerdict.SUPERSEDED),
        (replace(PRIMARY, life=4, server=Server(7, 6)), replace_timeline(newer(), 5), None, LifeVerdict.BEGIN),
        # a life was prepared here: it is finished, unless its position says that a server has begun it before
        (replace(PREPARED, prepared=ELSEWHERE), newer(), None, LifeVerdict.BEGIN),
        (replace(PREPARED, prepared=ELSEWHERE), newer(), REACHED, LifeVerdict.BEGIN),
        (replace(PREPARED, prepared=ELSEWHERE), newer(), Position(5, 4, 1_000, 50, 600), LifeVerdict.RESTORED),
        (replace(PREPARED, prepared=HERE), newer(), Position(5, 4, 1_000, 50, 600), LifeVerdict.BEGIN),
        (PREPARED, newer(), Position(5, 4, 1_000, 50, 600), LifeVerdict.BEGIN),
        # another cluster of databases: a logical restore, pg_upgrade
        (replace(PRIMARY, server=Server(8, 3)), RECORD, REACHED, LifeVerdict.RESTORED),
        (replace(PRIMARY, server=Server(8, 1)), newer(), None, LifeVerdict.RESTORED),
        (replace(PRIMARY, life=0, server=Server(8, 3)), None, None, LifeVerdict.RESTORED),
        # another database of the same server: by the row, and by the bucket's record of the life
        (replace(IN_60, begun_on=Server(7, 3, 50)), RECORD, None, LifeVerdict.RESTORED),
        (IN_60, in_database(RECORD, 50), None, LifeVerdict.RESTORED),
        (replace(PRIMARY, server=Server(7, 4, 60)), in_database(RECORD, 50), None, LifeVerdict.RESTORED),
        (
            replace(PRIMARY, life=0, begun_on=Server(7, 3, 50), server=Server(7, 3, 60)),
            None,
            None,
            LifeVerdict.RESTORED,
        ),
        # which a release before may not have noted: of its life nothing is known
        (IN_60, RECORD, REACHED, LifeVerdict.CURRENT),
        (replace(PRIMARY, begun_on=Server(7, 3, 60), server=Server(7, 3, 60)), RECORD, REACHED, LifeVerdict.CURRENT),
        # a promotion goes on, and a record of another life says nothing of this one
        (replace(PRIMARY, begun_on=Server(7, 3, 60), server=Server(7, 4, 60)), RECORD, REACHED, LifeVerdict.BEGIN),
        (IN_60, in_database(newer(), 50), None, LifeVerdict.SUPERSEDED),
        # an old primary that stays up, and two of one number
        (PRIMARY, newer(), None, LifeVerdict.SUPERSEDED),
        (PRIMARY, newer(4), None, LifeVerdict.SUPERSEDED),
        # a copy of the volume; a dump restored into the same server, which has more WAL
        (replace(PRIMARY, wal_bytes=999), RECORD, REACHED, LifeVerdict.RESTORED),
        (replace(PRIMARY, wal_bytes=2_000, feed_sum=49), RECORD, REACHED, LifeVerdict.RESTORED),
        (replace(PRIMARY, wal_bytes=2_000, metadata_head=599), RECORD, REACHED, LifeVerdict.RESTORED),
        # a position of another life says nothing
        (replace(PRIMARY, wal_bytes=999), RECORD, Position(3, 3, 1_000, 50, 600), LifeVerdict.CURRENT),
    ],
)
def test_the_verdict(
    found: ServerLife, newest: LifeRecord | None, reached: Position | None, expected: LifeVerdict
) -> None:
    assert judge(found, newest, reached) is expected


def test_numbers_of_a_life_are_above_those_of_the_life_before() -> None:
    assert (log_floor(0), epoch_floor(0)) == (0, 0)
    for life in (0, 1, 7, LIFE_MAX - 1):
        assert life_of_offset(log_floor(life)) == life_of_offset(log_floor(life + 1) - 1) == life
        assert epoch_floor(life + 1) - epoch_floor(life) == 1 << 20
    assert epoch_floor(LIFE_MAX) < 2**31
    assert log_floor(LIFE_MAX) < 1 << 39, "a topic number has 39 bits"
    for beyond in (-1, LIFE_MAX + 1):
        with pytest.raises(InvalidError):
            epoch_floor(beyond)
