"""Check which quota applies to a client: Kafka's eight levels, and who shares a bucket."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.agent.access.quotas.limits import PRODUCE, BucketKey, Limit, QuotaTable
from headrace.metastore.log.kip631_records import EntityData

DEFAULT = None
LEVELS: list[tuple[dict[str, str | None], tuple[str | None, str | None]]] = [
    ({"user": "alice", "client-id": "app"}, ("alice", "app")),
    ({"user": "alice", "client-id": DEFAULT}, ("alice", "app")),
    ({"user": "alice"}, ("alice", None)),
    ({"user": DEFAULT, "client-id": "app"}, ("alice", "app")),
    ({"user": DEFAULT, "client-id": DEFAULT}, ("alice", "app")),
    ({"user": DEFAULT}, ("alice", None)),
    ({"client-id": "app"}, (None, "app")),
    ({"client-id": DEFAULT}, (None, "app")),
]
"""Levels in Kafka's order: the entity, and the owner of the bucket for user alice and client id app."""


def entity(**names: str | None) -> tuple[EntityData, ...]:
    return tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in sorted(names.items()))


def table(*quotas: tuple[dict[str, Any], dict[str, float]]) -> QuotaTable:
    return QuotaTable({entity(**names): values for names, values in quotas})


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("first", range(len(LEVELS)))
def test_the_first_level_that_has_the_key_applies(first: int) -> None:
    found = table(*((names, {PRODUCE: 100.0 + level}) for level, (names, _) in enumerate(LEVELS) if level >= first))
    owner = LEVELS[first][1]
    assert found.limit(PRODUCE, "alice", "app") == Limit(BucketKey(PRODUCE, *owner), 100.0 + first)


def test_a_level_without_the_key_is_passed_over() -> None:
    found = table(({"user": "alice"}, {"consumer_byte_rate": 5.0}), ({"client-id": DEFAULT}, {PRODUCE: 7.0}))
    assert found.limit(PRODUCE, "alice", "app") == Limit(BucketKey(PRODUCE, None, "app"), 7.0)
    assert found.limit("request_percentage", "alice", "app") is None
    assert found.kinds == {"consumer_byte_rate", PRODUCE}


def test_a_default_is_one_bucket_for_each_name() -> None:
    found = table(({"user": DEFAULT}, {PRODUCE: 7.0}))
    keys = {found.limit(PRODUCE, user, "app").key for user in ("alice", "bob", "alice")}  # type: ignore[union-attr]
    assert keys == {BucketKey(PRODUCE, "alice", None), BucketKey(PRODUCE, "bob", None)}


@pytest.mark.parametrize("name", ["\0absent", "", "None", "<default>", "ABSENT"])
def test_no_client_id_is_mistaken_for_another_level(name: str) -> None:
    found = table(({"user": "alice"}, {PRODUCE: 7.0}))
    assert found.limit(PRODUCE, "alice", name) == Limit(BucketKey(PRODUCE, "alice", None), 7.0)
    assert found.limit(PRODUCE, name, "app") is None


def test_a_bucket_of_another_agent_has_the_rate_of_its_limit() -> None:
    found = table(({"user": "alice"}, {PRODUCE: 7.0}), ({"client-id": DEFAULT}, {PRODUCE: 9.0}))
    assert found.rate_of(BucketKey(PRODUCE, "alice", None)) == 7.0
    assert found.rate_of(BucketKey(PRODUCE, None, "app")) == 9.0
    assert found.rate_of(BucketKey(PRODUCE, "bob", None)) is None


def test_an_address_has_its_limit_or_the_default() -> None:
    found = table(({"ip": "10.0.0.1"}, {"connection_creation_rate": 5.0}))
    assert (found.connection_rate("10.0.0.1"), found.connection_rate("10.0.0.2")) == (5.0, None)
    found = table(({"ip": DEFAULT}, {"connection_creation_rate": 2.0}))
    assert found.connection_rate("10.0.0.2") == 2.0
    assert not found.kinds
