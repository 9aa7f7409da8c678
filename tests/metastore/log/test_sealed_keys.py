"""X2: users' keys are sealed in the image, the log and snapshots, and sealed again under a new key."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence
from functools import partial

import pytest

from headrace.metastore.api.agents import METADATA_FORMAT, SEALED_SECRETS, agent_features
from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.features import SCRAM_KEYS_FORMAT, change_feature
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import (
    BrokerFeature,
    CredentialInfo,
    FeatureLevelRecord,
    UserScramCredentialRecord,
)
from headrace.metastore.log.own_records import ScramKeys, UserScramKeysRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.metastore.log.scram_keys import SealedKeys, as_keys
from headrace.metastore.log.snapshot import encode_snapshot, load_snapshot, snapshot_records
from headrace.metastore.sealing import Sealing
from headrace.storage.errors import InvalidError, UnsupportedFeatureError
from tests.metastore.log.log_histories import agent_record

pytestmark = pytest.mark.requirement("X2")
OLD, NEW = (base64.b64encode(letter * 32).decode() for letter in (b"o", b"n"))
ALICE = tuple(
    ScramKeys(mechanism=number, salt=b"salt", iterations=4096, stored_key=b"S" * size, server_key=b"V" * size)
    for number, size in ((1, 32), (2, 64))
)
BOB = CredentialInfo(mechanism=1, salt=b"salt", salted_password=b"bob's salted password", iterations=4096)
FORMAT = FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=SCRAM_KEYS_FORMAT)
HISTORY: list[MetadataRecord] = [
    FORMAT,
    UserScramKeysRecord(user_name="alice", keys=ALICE),
    UserScramCredentialRecord(user_name="bob", credential_infos=(BOB,)),
]


def _sealed_keys(keys: str, cluster: str = "cluster") -> SealedKeys:
    return SealedKeys(Sealing(keys), cluster)


def _image(records: Sequence[MetadataRecord], before: MetadataImage | None = None) -> MetadataImage:
    return apply(before or MetadataImage(), map(encode_record, records))


def _opened(image: MetadataImage, sealed_keys: SealedKeys) -> dict[str, tuple[ScramKeys, ...]]:
    return {
        user: tuple(sealed_keys.opened(user, as_keys(each)) for each in held)
        for user, held in image.scram_credentials.items()
    }


def test_all_users_are_sealed_and_read_as_before() -> None:
    before, own = _image(HISTORY), _sealed_keys(OLD)
    image = _image(own.due(before), before)
    assert _opened(image, own) == _opened(before, own) == {"alice": ALICE, "bob": (as_keys(BOB),)}
    stored = b"".join(snapshot_records(image))
    for keys in (*ALICE, as_keys(BOB)):
        assert keys.stored_key not in stored
        assert keys.server_key not in stored
    assert own.due(image) == [], "nothing is left to do"
    again = load_snapshot(encode_snapshot(image))
    assert again == image
    assert _opened(again, own) == _opened(before, own)


def test_the_log_before_it_is_dropped() -> None:
    """As after metadata.format is raised: the controller writes snapshots until it is."""
    before, own = _image(HISTORY), _sealed_keys(OLD)
    image = _image(own.due(before), before)
    assert image.passwords_until == len(HISTORY)
    assert load_snapshot(encode_snapshot(image)).passwords_until == 0


def test_a_new_key_seals_everything_again() -> None:
    first = _sealed_keys(OLD)
    image = _image(first.due(_image(HISTORY)), _image(HISTORY))
    both, after = _sealed_keys(f"{NEW},{OLD}"), _sealed_keys(NEW)
    due = both.due(image)
    assert [record.user_name for record in due if isinstance(record, UserScramKeysRecord)] == ["alice", "bob"]
    resealed = _image(due, image)
    assert _opened(resealed, after) == _opened(image, first)
    assert resealed.passwords_until > image.passwords_until, "the old ones go from the log, too"
    with pytest.raises(InvalidError, match="lacks the key"):
        after.due(image)


def test_users_are_written_as_the_cluster_wants_them() -> None:
    own, plain = _sealed_keys(OLD), _image(HISTORY)
    sealed = _image(own.due(plain), plain)
    assert own.sealed(plain, "carol", ALICE[0]) == ALICE[0], "agents without keys may be there"
    stored = own.sealed(sealed, "carol", ALICE[0])
    assert stored.server_key == b""
    assert own.opened("carol", stored) == ALICE[0]


def test_sealed_keys_are_of_one_user_and_mechanism_and_cluster() -> None:
    own, plain = _sealed_keys(OLD), _image(HISTORY)
    stored = own.sealed(_image(own.due(plain), plain), "alice", ALICE[0])
    for other, user, keys in (
        (own, "mallory", stored),
        (own, "alice", dataclasses.replace(stored, mechanism=2)),
        (_sealed_keys(OLD, "another"), "alice", stored),
    ):
        with pytest.raises(InvalidError, match="was changed, or is another's"):
            other.opened(user, keys)


def test_the_level_rises_only_when_every_agent_has_keys() -> None:
    def due(*agents: MetadataRecord) -> list[MetadataRecord]:
        return _sealed_keys(OLD).due(_image([FORMAT, *agents]))

    without, with_keys = _agent(2, has_secret_keys=False), partial(_agent, has_secret_keys=True)
    with pytest.raises(UnsupportedFeatureError, match=r"an agent does not support the level: .* node_id=2"):
        due(with_keys(1), without)
    assert len(due(with_keys(1), with_keys(2))) == 1


def _agent(node_id: int, *, has_secret_keys: bool) -> MetadataRecord:
    features = tuple(
        BrokerFeature(name=name, min_version=levels.min_level, max_version=levels.max_level)
        for name, levels in agent_features(has_secret_keys=has_secret_keys).items()
    )
    return dataclasses.replace(agent_record(node_id, node_id), features=features)


def test_the_level_needs_the_format_and_never_goes_down() -> None:
    with pytest.raises(InvalidError, match=r"raise metadata\.format to 4 first"):
        _sealed_keys(OLD).due(MetadataImage())
    image = _image(_sealed_keys(OLD).due(_image([FORMAT])), _image([FORMAT]))
    with pytest.raises(InvalidError, match="level cannot go down"):
        change_feature(image, SEALED_SECRETS, 0, allow_downgrade=True)
