"""No record of the metadata log is larger than a limit, for all writers; one that removes something may be."""

from __future__ import annotations

import psycopg
import pytest

from headrace.metastore.log.kip631_records import (
    AccessControlRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EntityData,
    QuotaRecord,
)
from headrace.metastore.log.own_records import (
    RemoveAccessControlRecord,
    RemoveDelegationTokenRecord,
    RemoveFeatureLevelRecord,
    RemoveUserScramCredentialRecord,
    UserScramKeysRecord,
)
from headrace.metastore.log.records import RECORD_BYTES_MAX, encode_record, is_removal, refuse_large
from headrace.metastore.log.replay import apply
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.log.wire import MetadataRecord
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError
from tests.metastore.sessions import Session, rows

pytestmark = pytest.mark.requirement("X7")
LONG = "x" * 300_000


def token(token_id: str = "t", renewer: str = "User:bob") -> DelegationTokenRecord:
    return DelegationTokenRecord(
        owner="User:ann",
        renewers=(renewer,),
        issue_timestamp=1,
        max_timestamp=2**50,
        expiration_timestamp=2**50,
        token_id=token_id,
    )


def acl(name: str) -> dict[str, object]:
    fields = {"resource_type": 2, "pattern_type": 3, "principal": "User:a", "host": "*", "operation": 3}
    return {"resource_name": name, "permission_type": 3, **fields}


def quota(name: str, *, remove: bool, value: float = 1.0) -> QuotaRecord:
    entity = (EntityData(entity_type="client-id", entity_name=name),)
    return QuotaRecord(entity=entity, key="producer_byte_rate", value=value, remove=remove)


def config(value: str | None, name: str = "g") -> ConfigRecord:
    return ConfigRecord(resource_type=32, resource_name=name, name="consumer.session.timeout.ms", value=value)


ADDING: list[MetadataRecord] = [
    token(renewer=LONG),
    AccessControlRecord(**acl(LONG)),  # type: ignore[arg-type]
    quota(LONG, remove=False),
    quota(LONG, remove=False, value=0.0),
    config(LONG),
    config("", LONG),
    config("7", LONG),
    UserScramKeysRecord(user_name=LONG, keys=()),
]
REMOVING: list[MetadataRecord] = [
    RemoveDelegationTokenRecord(token_id=LONG),
    RemoveAccessControlRecord(**acl(LONG)),  # type: ignore[arg-type]
    RemoveUserScramCredentialRecord(user_name=LONG),
    RemoveFeatureLevelRecord(name=LONG),
    quota(LONG, remove=True),
    quota(LONG, remove=True, value=0.0),
    config(None, LONG),
]


def sized(size: int) -> DelegationTokenRecord:
    """A record of so many bytes."""
    return token(renewer="x" * (size - len(encode_record(token(renewer="x" * 100_000))) + 100_000))


def test_python_knows_what_removes() -> None:
    assert [is_removal(record) for record in (*ADDING, *REMOVING)] == [False] * len(ADDING) + [True] * len(REMOVING)
    refuse_large([*REMOVING, sized(RECORD_BYTES_MAX)])
    for record in (*ADDING, sized(RECORD_BYTES_MAX + 1)):
        with pytest.raises(InvalidError, match="too large"):
            refuse_large([record])


async def test_postgres_judges_as_python_does(raw: Session) -> None:
    """A writer of another release has other Python, but the same function."""
    ((most,),) = await rows(raw, "SELECT record_bytes_max()")
    assert most == RECORD_BYTES_MAX
    for record in (*ADDING, *REMOVING):
        ((removes,),) = await rows(raw, "SELECT is_removal_record(%s)", encode_record(record))
        assert removes is is_removal(record), type(record).__name__
    assert await rows(raw, "SELECT is_removal_record(%s), is_removal_record(%s)", b"", b"\0\4") == [(False, False)]


async def test_no_function_appends_a_record_that_is_too_large(metastore: PostgresMetastore, raw: Session) -> None:
    head = await metastore.cluster.metadata_head()
    append = "SELECT append_metadata(lock_metadata_head(), %s)"
    for record in (*ADDING, sized(RECORD_BYTES_MAX + 1)):
        with pytest.raises(psycopg.errors.RaiseException, match="metadata record is too large"):
            await raw.execute(append, [[encode_record(token()), encode_record(record)]])
    assert await metastore.cluster.metadata_head() == head
    await raw.execute(append, [[encode_record(sized(RECORD_BYTES_MAX))]])
    with pytest.raises(InvalidError, match="DelegationTokenRecord bytes=3"):
        await metastore.cluster.append_records(head + 1, [token(renewer=LONG)])
    assert await metastore.cluster.metadata_head() == head + 1


async def test_a_log_from_before_the_limit_is_read_and_can_be_cleaned(
    metastore: PostgresMetastore, raw: Session
) -> None:
    image = await load_image(metastore.cluster)
    old = [token("old", renewer="x" * 7_000_000), AccessControlRecord(**acl(LONG)), quota(LONG, remove=False)]  # type: ignore[arg-type]
    await _append_as_before(raw, [encode_record(record) for record in old])
    known = await load_image(metastore.cluster)
    assert known == apply(image, [encode_record(record) for record in old]), "an agent that starts reads it"
    gone: list[MetadataRecord] = [
        RemoveDelegationTokenRecord(token_id="old"),
        RemoveAccessControlRecord(**acl(LONG)),  # type: ignore[arg-type]
        quota(LONG, remove=True),
    ]
    assert await metastore.cluster.append_records(known.offset, gone)
    clean = await load_image(metastore.cluster)
    assert (clean.delegation_tokens, clean.access_controls, clean.quotas) == ({}, frozenset(), {})


async def _append_as_before(raw: psycopg.AsyncConnection[tuple[object, ...]], records: list[bytes]) -> None:
    insert = """WITH head AS (SELECT next_offset FROM metadata_head),
        added AS (INSERT INTO metadata_log (record_offset, record, appended_at)
                  SELECT next_offset + n - 1, record, clock_timestamp()
                    FROM head, unnest(%s::bytea[]) WITH ORDINALITY AS a (record, n))
        UPDATE metadata_head SET next_offset = next_offset + %s"""
    await raw.execute(insert, [records, len(records)])
