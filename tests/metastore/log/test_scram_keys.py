"""X2: from metadata.format 4 on, no salted password is in the log, nor in what is made from it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

import pytest

from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.features import SCRAM_KEYS_FORMAT, change_feature
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import CredentialInfo, FeatureLevelRecord, UserScramCredentialRecord
from headrace.metastore.log.own_records import RemoveUserScramCredentialRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.metastore.log.scram_keys import as_keys, scram_keys
from headrace.metastore.log.snapshot import encode_snapshot as encode
from headrace.metastore.log.snapshot import load_snapshot, snapshot_records
from headrace.storage.errors import InvalidError

PASSWORDS = [b"salted-password-one", b"salted-password-two"]


def _user(name: str, *passwords: bytes) -> UserScramCredentialRecord:
    infos = tuple(
        CredentialInfo(mechanism=number, salt=b"s", salted_password=password, iterations=4096)
        for number, password in enumerate(passwords, start=1)
    )
    return UserScramCredentialRecord(user_name=name, credential_infos=infos)


def _level(level: int) -> FeatureLevelRecord:
    return FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=level)


def _image(records: Sequence[MetadataRecord]) -> MetadataImage:
    return apply(MetadataImage(), map(encode_record, records))


def _bytes(image: MetadataImage) -> bytes:
    return b"".join(snapshot_records(image))


HISTORY = [
    _level(3),
    _user("a", *PASSWORDS),
    _user("gone", PASSWORDS[0]),
    RemoveUserScramCredentialRecord(user_name="gone"),
    _level(SCRAM_KEYS_FORMAT),
    _user("late", PASSWORDS[1]),
]


def test_the_keys_are_those_of_the_rfc() -> None:
    """RFC 7677's example: user, pencil."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    keys = scram_keys(1, salt, 4096, hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096))
    assert base64.b64encode(keys.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(keys.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


@pytest.mark.requirement("X2")
def test_raising_the_format_replaces_salted_passwords() -> None:
    before, after = _image(HISTORY[:4]), _image(HISTORY)
    assert PASSWORDS[0] in _bytes(before), "agents below format 4 need it"
    assert not any(password in _bytes(after) for password in PASSWORDS)
    assert after.scram_credentials["a"] == tuple(map(as_keys, before.scram_credentials["a"]))
    assert after.passwords_until == len(HISTORY)
    again = load_snapshot(encode(after))
    assert (again, again.passwords_until) == (after, 0)


@pytest.mark.parametrize("cut", range(len(HISTORY) + 1))
def test_the_image_is_the_same_wherever_the_log_is_cut(cut: int) -> None:
    first = load_snapshot(encode(_image(HISTORY[:cut]))) if cut else MetadataImage()
    assert apply(first, map(encode_record, HISTORY[cut:])) == _image(HISTORY)


def test_the_format_does_not_go_back_below_the_keys() -> None:
    with pytest.raises(InvalidError, match=r"do not know the keys of users: .* users=\['a', 'late'\]"):
        change_feature(_image(HISTORY), METADATA_FORMAT, SCRAM_KEYS_FORMAT - 1, allow_downgrade=True)
