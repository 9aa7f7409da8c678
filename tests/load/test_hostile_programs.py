"""The attacks of tests/hostile: each is a program with a description, and its requests are what they claim to be."""

from __future__ import annotations

import importlib
import inspect
import struct

import pytest

from headrace.metastore.log.snapshot import load_snapshot
from headrace.protocol.typed import schema
from headrace.storage.errors import HeadraceError, InvalidError
from headrace.storage.records.check import check_batch
from headrace.storage.records.check_records import check_records
from tests.hostile import attacks
from tests.hostile.__main__ import names
from tests.hostile.attacks import (
    false_batches,
    fetch_sessions,
    foreign_sessions,
    large_members,
    leave_reasons,
    long_client_ids,
    long_group_ids,
    long_names,
    long_renewers,
    many_ids,
    membership,
    patterns,
    pipelined_produce,
    share_sessions,
    streams_topologies,
    unknown_users,
)
from tests.hostile.attacks.this_machine import snapshot_bomb
from tests.hostile.attacks.unread_replies import fetch
from tests.hostile.grown_requests import grown_fields

pytestmark = pytest.mark.requirement("X7")


@pytest.mark.parametrize("name", names())
def test_each_attack_is_a_program(name: str) -> None:
    module = importlib.import_module(f"{attacks.__name__}.{name}")
    assert inspect.iscoroutinefunction(module.attack)
    assert module.__doc__


@pytest.mark.parametrize(
    "frame",
    [
        large_members.join("g", 100),
        large_members.join("g", 100, 4),
        membership.heartbeat(1, 5),
        membership.registration("cluster"),
        patterns.heartbeat(1, patterns.PATTERNS[0]),
        fetch_sessions.session(3),
        foreign_sessions.fetch(0, 0, "secret"),
        foreign_sessions.fetch(7, 1),
        share_sessions.session("m", 2),
        streams_topologies.join("loop", *streams_topologies.loop(10)),
        unknown_users.first_message("user"),
        fetch(1),
        long_names.request_of(1, 100),
        long_group_ids.commit(1, 100),
        long_group_ids.heartbeat("g", 1, "rack"),
        long_renewers.token("renewer"),
        many_ids.init_producer("id"),
        pipelined_produce.small(1),
        pipelined_produce.wide(1, 0),
        *(field.frame(1, 100) for field in grown_fields()),
        leave_reasons.leave(200, b"reason"),
    ],
)
def test_its_requests_can_be_decoded(frame: bytes) -> None:
    """Else it would only test that garbage is refused."""
    size, api_key, version, _, name = struct.unpack_from(">ihhih", frame)
    assert size == len(frame) - 4
    flexible = schema(api_key, version).flexible
    body = memoryview(frame)[14 + name + flexible :]
    assert schema(api_key, version).decode(body) is not None


def test_client_ids_differ_in_more_than_digits() -> None:
    """Lines that differ in digits alone count as the same."""
    names = [long_client_ids.client_id(number) for number in range(10_000)]
    assert len(set(names)) == 10_000
    assert not any(letter.isdigit() for name in names[:100] for letter in name)
    assert {len(name.encode()) for name in names[:100]} == {long_client_ids.CLIENT_ID_BYTES}


def test_every_api_with_a_text_has_its_fields_grown() -> None:
    fields = grown_fields()
    assert len({(field.api_key, field.path) for field in fields}) == len(fields) > 100
    first, second = (fields[0].frame(number, 5_000) for number in (1, 2))
    assert first != second
    assert len(first) > 5_000


def test_false_batches_pass_the_checks_before_theirs() -> None:
    refused = {}
    for name, batch in false_batches.batches().items():
        header = check_batch(memoryview(batch), max_bytes=1 << 20)
        try:
            check_records(memoryview(batch), header)
        except HeadraceError as error:
            refused[name] = type(error).__name__
    assert refused == {
        "7.7 KB that claim 10 million records": "CorruptError",
        "a bomb of zeros": "BatchTooLargeError",
        "40,000 empty gzip members": "InvalidRecordError",
    }


def test_the_snapshot_is_a_bomb_with_a_valid_checksum() -> None:
    with pytest.raises(InvalidError, match="too large to unpack"):
        load_snapshot(snapshot_bomb(100_000_000), 64 * 1024 * 1024)
