"""Pure SQL functions that calculate: each gives the right result for the least and the largest arguments.

Generated from the installed functions: one that calculates and has no model here fails the test. DOMAINS are what
callers pass; outside of a domain nothing is promised.
"""

from __future__ import annotations

import itertools
import re
import struct
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from headrace.metastore.api.transactions import EPOCH_MAX
from headrace.metastore.life.numbers import EPOCH_BITS, LIFE_MAX, LOG_BITS, NUMBER_BITS
from headrace.metastore.segment_logs.records import metadata_partition
from headrace.metastore.transaction_markers import Marker, marker_file_id
from tests.metastore.sessions import Session, rows

INT16, INT32, INT64 = 2**15 - 1, 2**31 - 1, 2**63 - 1
LIMITS = {"smallint": INT16, "integer": INT32, "bigint": INT64}
INDEX_MAX = (1 << 24) - 1
KEY_MAX = ((1 << 39) - 1) << 24 | INDEX_MAX

DOMAINS: dict[str, list[Any]] = {
    "p_key": [0, INDEX_MAX, KEY_MAX],
    "p_shards": [1, 2, INT16],
    "p_life": [0, 1, LIFE_MAX],
    "p_sequence": [0, 1, INT32],
    "p_next": [0, 1, INT32],
    "p_records": [1, 2, INT32],
    "p_alias": [-1, 0, INDEX_MAX],
    "p_updates": [0, 31, 32, INT64],
    "p_ms": [-INT64 - 1, -62_135_596_800_000, -1, 0, 253_402_300_799_999, INT64],
    "p_born_ms": [0, 899_999, (1 << 48) - 1],
    "p_producer_id": [0, 1, INT64],
    "p_epoch": [0, 1, EPOCH_MAX + 1],
    "p_a": [0, 1, (1 << 32) - 1],
    "p_b": [0, 1, (1 << 32) - 1],
    "p_partition_index": [0, 1, INDEX_MAX],
    "p_topic_id": [uuid.UUID(int=0), uuid.UUID(int=(1 << 128) - 1)],
    "p_last": [0, INT64],
    "p_end": [0, 1, INT64],
    "p_what": ["numbers"],
    "p_log": ["commit_log", "commit_answers"],
    "p_place": [0, 8, 16],
    "p_ring": [struct.pack(">3q", -1, INT64, -INT64 - 1)],
    "p_time": [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)],
    "p_interval": [timedelta(), timedelta(microseconds=999), timedelta(days=999_999_999)],
    "p_wrapped": [False, True],
    "p_commits": [False, True],
    "p_extents": [b"", bytes(68 * 3)],
    "p_opens": [b"", bytes(16 * 5)],
    "p_aborted": [b"", bytes(32)],
    "recent_entry.p_ring": [bytes(range(32))],
    "recent_entry.p_place": [1, 2],
    "inline_birth.p_file_id": [uuid.UUID(int=ms << 80) for ms in (0, 1_796_019_161_221, 4_102_444_799_999)],
    "p_record": [b"", bytes(4), bytes([0, 4, 0, 0, 0]), bytes([0, 14, 0, 1, 0]), bytes([0, 100, 0, 1])],
}
"""Values by the name of the parameter, or of function and parameter. A number without an entry gets -1, 0, and the
least and largest of its type.
"""

REFUSED = object()
METADATA_KEY = -1 << 24
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def wraps(sequence: int, following: int) -> int:
    return (following - sequence) & INT32


MODELS: dict[str, Callable[..., Any]] = {
    "to_ms": lambda time: (time - EPOCH) // timedelta(milliseconds=1),
    "record_time": lambda ms: EPOCH + timedelta(milliseconds=min(max(ms, -62_135_596_800_000), 253_402_300_799_999)),
    "interval_ms": lambda interval: interval // timedelta(milliseconds=1),
    "update_block": lambda updates: updates // 32,
    "commit_shard": lambda key, shards: ((key >> 24) + (key & INDEX_MAX)) % shards,
    "next_sequence": lambda sequence, records: (sequence + records) % 2**31,
    "is_behind": lambda sequence, records, following, wrapped: (
        records <= wraps(sequence, following) <= 2**30 if wrapped else sequence + records <= following
    ),
    "ring_number": lambda ring, place: struct.unpack_from(">q", ring, place)[0],
    "key_of_alias": lambda key, alias: (key & ~INDEX_MAX) + alias if alias >= 0 else None,
    "inline_birth": lambda file_id: EPOCH + timedelta(milliseconds=file_id.int >> 80),
    "answer_slot": lambda born_ms: born_ms // 900_000 % 8,
    "life_floor64": lambda life: life << NUMBER_BITS,
    "life_floor_log": lambda life: life << LOG_BITS,
    "life_floor32": lambda life: life << EPOCH_BITS,
    "within_life": lambda what, last, end: REFUSED if last >= end else last,
    "time_block_extents": lambda key: 64 + key % 64,
    "metadata_partition": metadata_partition,
    "multiply32": lambda a, b: a * b % 2**32,
    "marker_file_id": lambda producer, epoch, commits: marker_file_id(Marker(producer, epoch, commits)),
    "is_rendered_key": lambda key: key == METADATA_KEY or (key >> 24 in (-2, -3) and key & INDEX_MAX < 50),
    "pack_transaction_row": lambda extents, opens, aborted: (
        struct.pack(">i", len(extents) // 68) + extents + struct.pack(">i", len(opens) // 16) + opens + aborted
    ),
    "is_removal_record": lambda record: (
        len(record) >= 4 and (100 <= record[1] <= 103 or (record[1], record[-2:]) in ((4, b"\0\0"), (14, b"\1\0")))
    ),
    "recent_entry": lambda ring, place, base: (
        ring[16 * place - 16 : 16 * place - 8] + struct.pack(">q", base) + ring[16 * place - 8 : 16 * place]
    ),
    "transactional_batches": lambda epoch, sequence: REFUSED,  # arrays: below
    # arrays: test_earlier_commit.py compares them with the layout in Python
    "lay_out_partitions": lambda *columns: REFUSED,
    "lay_out_producers": lambda *columns: REFUSED,
    "recent_entries": lambda *columns: REFUSED,
}
CALCULATES = re.compile(r"[\w)\]]\s*(?:\+|-(?!-)|\*|/|%|<<|>>)\s*[\w(]|next_sequence|\bextract\b|::bit")

PURE = """
SELECT p.proname::text, p.proargnames::text[],
       array(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS a (t, n) ORDER BY n),
       pg_get_functiondef(p.oid)
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = 'public' AND p.prokind = 'f' AND p.provolatile = 'i' AND p.pronargs > 0
 ORDER BY 1
"""


def arguments(function: str, names: list[str], types: list[str]) -> list[tuple[Any, ...]]:
    """Every combination of the boundaries."""
    choices = []
    for name, kind in zip(names, types, strict=False):
        largest = LIMITS.get(kind)
        known = DOMAINS.get(f"{function}.{name}") or DOMAINS.get(name)
        assert known or largest is not None, f"no boundaries: {function} {name} {kind}"
        choices.append(known or [-(largest or 0) - 1, -1, 0, largest])
    return list(itertools.product(*choices))


@pytest.mark.requirement("X1")
async def test_a_function_that_calculates_is_right_at_the_ends_of_its_domain(raw: Session) -> None:
    pure = await rows(raw, PURE)
    calculating = {name for name, _, _, text in pure if CALCULATES.search(text.partition("RETURNS")[2])}
    assert calculating - MODELS.keys() == set(), "a pure function calculates: what is its result at the boundaries?"
    calls = 0
    for name, names, types, _ in pure:
        if name not in MODELS or any(kind.endswith("[]") for kind in types):
            continue
        placeholders = ", ".join(f"%s::{kind}" for kind in types)
        for values in arguments(name, names, types):
            expected = MODELS[name](*values)
            try:
                found = (await rows(raw, f"SELECT {name}({placeholders})", *values))[0][0]
            except psycopg.errors.RaiseException:
                found = REFUSED
            assert found == expected, (name, values)
            calls += 1
    assert calls > 150


async def test_batches_of_transactions_differ_from_others_up_to_the_last_epoch(raw: Session) -> None:
    """An epoch of a transactional batch is packed as -2 - epoch, its sequence as -1 - sequence."""
    epochs, sequences = (0, 1, EPOCH_MAX), (0, INT32)
    packed = [(-2 - epoch, sequence) for epoch in epochs for sequence in sequences]
    packed += [(-2 - epoch, -1 - sequence) for epoch in epochs for sequence in sequences]
    packed += [(epoch, sequence) for epoch in (-1, 0, INT16) for sequence in (-1, *sequences)]
    query = "SELECT epoch, sequence FROM transactional_batches(%s::smallint[], %s::int[])"
    ((found_epochs, found_sequences),) = await rows(raw, query, *map(list, zip(*packed, strict=True)))
    expected = [(epoch, sequence) for epoch in epochs for sequence in sequences] * 2 + packed[12:]
    assert list(zip(found_epochs, found_sequences, strict=True)) == expected
