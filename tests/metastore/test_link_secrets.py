"""X14, X2: secrets of links are stored sealed, for one link and one config, or not at all."""

from __future__ import annotations

import base64

import pytest

from headrace.metastore.link_secrets import opened, sealed, why_not_sealed
from headrace.metastore.sealing import Sealing
from headrace.storage.errors import InvalidError

pytestmark = pytest.mark.requirement("X14", "X2")
KEYS, NONE = Sealing(base64.b64encode(b"k" * 32).decode()), Sealing(None)
CONFIGS = {
    "topics": "a",
    "sasl.username": "u",
    "sasl.password": "hunter2",
    "ssl.key.password": "${env:HEADRACE_LINK_KEY_PASSWORD}",
}


def test_secrets_are_sealed_and_open_again() -> None:
    stored = sealed(KEYS, "old", CONFIGS)
    assert stored["sasl.password"].startswith("sealed:")
    assert "hunter2" not in str(stored)
    assert {name for name in CONFIGS if stored[name] == CONFIGS[name]} == CONFIGS.keys() - {"sasl.password"}
    assert opened(KEYS, "old", stored) == CONFIGS


@pytest.mark.parametrize(("link", "name"), [("new", "sasl.password"), ("old", "sasl.jaas.config")])
def test_a_sealed_value_opens_for_its_link_and_config_only(link: str, name: str) -> None:
    value = sealed(KEYS, "old", CONFIGS)["sasl.password"]
    with pytest.raises(InvalidError, match=f"link {link}: {name} cannot be opened: a secret of the cluster was chang"):
        opened(KEYS, link, {name: value})


@pytest.mark.parametrize("value", ["sealed:", "sealed:?", "sealed:AAAA"])
def test_what_is_no_sealed_value_is_named(value: str) -> None:
    with pytest.raises(InvalidError, match=r"link old: sasl\.password cannot be opened"):
        opened(KEYS, "old", {"sasl.password": value})


def test_without_keys_secrets_are_refused_and_references_are_not() -> None:
    assert "sasl.password: cannot be stored, because the agents have no metadata.secret.keys" in str(
        why_not_sealed(NONE, CONFIGS)
    )
    references = {**CONFIGS, "sasl.password": "${env:HEADRACE_LINK_PASSWORD}"}
    assert why_not_sealed(NONE, references) is None
    assert sealed(NONE, "old", references) == references == opened(NONE, "old", references)
    assert why_not_sealed(KEYS, CONFIGS) is None
    with pytest.raises(InvalidError, match=r"metadata\.secret\.keys is not set"):
        sealed(NONE, "old", CONFIGS)


def test_a_stored_value_is_not_taken_from_a_request() -> None:
    stored = sealed(KEYS, "old", CONFIGS)
    assert "sasl.password: begins with sealed:" in str(why_not_sealed(KEYS, stored))
