"""5,000 new transactional ids and 5,000 offsets of new groups, where 1,000 of each may be stored.

Printed: what the metastore has of them at the end, and whether a producer and a group that were there before continue.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter

import psycopg
from kio.schema.errors import ErrorCode

from headrace.protocol.typed import schema
from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.attacks.long_group_ids import TOPIC, commit
from tests.hostile.frames import METADATA, request, text
from tests.hostile.typed_frames import Asking, frame

LIMIT, MANY = 1_000, 5_000
SETTINGS = {"max.transactional.ids": LIMIT, "max.committed.offsets": LIMIT}
_INIT, _VERSION = 22, 4
_TABLES = ("transactions", "group_offsets", "consumer_groups")


def init_producer(name: str | None) -> bytes:
    """Make an InitProducerId of a producer with this transactional id."""
    minute = datetime.timedelta(minutes=1)
    return frame(_INIT, _VERSION, transactional_id=name, transaction_timeout=minute, producer_id=-1, producer_epoch=-1)


async def prepare(target: AttackedAgent) -> None:
    """A topic, and a transactional id and a group that are there before."""
    async with Asking(*target.kafka) as connection:
        await connection.ask(request(METADATA, 4, b"\0\0\0\1" + text(TOPIC) + b"\1"))
        await connection.ask(init_producer("before"))
        await connection.ask(commit(999_999, 10))


async def attack(target: AttackedAgent) -> str:
    """One after another."""
    codes: Counter[str] = Counter()
    async with Asking(*target.kafka) as connection:
        for number in range(MANY):
            codes[_code(await connection.ask(init_producer(f"id-{number}")))] += 1
            await connection.ask(commit(number, 20))
        again = _code(await connection.ask(init_producer("before")))
        committed = await connection.ask(commit(999_999, 10))
    group = ErrorCode(schema(8, 8).decode_response(committed).topics[0].partitions[0].error_code).name
    rows = await asyncio.to_thread(_rows, target)
    return f"transactional ids: {dict(codes)}, of before: {again}; a group of before: {group}; rows: {rows}"


def _code(answer: bytes) -> str:
    return ErrorCode(schema(_INIT, _VERSION).decode_response(answer).error_code).name if answer else "closed"


def _rows(target: AttackedAgent) -> dict[str, int]:
    with psycopg.connect(target.metastore_url) as connection:
        counts = ((name, connection.execute(f"SELECT count(*) FROM {name}").fetchone()) for name in _TABLES)
        return {name: row[0] for name, row in counts if row is not None}
