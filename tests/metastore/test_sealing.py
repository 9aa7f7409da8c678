"""Sealed values: which keys open them, and in which context."""

from __future__ import annotations

import base64

import pytest

from headrace.config.errors import ConfigError
from headrace.metastore.sealing import Sealing, is_sealed
from headrace.storage.errors import InvalidError

pytestmark = pytest.mark.requirement("X2")
OLD, NEW = (base64.b64encode(letter * 32).decode() for letter in (b"o", b"n"))
SECRET = b"s" * 32


def test_the_first_key_seals_and_all_open() -> None:
    before, during, after = Sealing(OLD), Sealing(f"{NEW},{OLD}"), Sealing(f"\n{NEW}\n")
    old, new = before.seal(SECRET, "zone"), during.seal(SECRET, "zone")
    assert [during.open(value, "zone") for value in (old, new)] == [SECRET, SECRET]
    assert (during.is_current(old), during.is_current(new), during.is_current(SECRET)) == (False, True, False)
    assert after.open(new, "zone") == SECRET
    for sealing, value in ((after, old), (before, new), (Sealing(None), new)):
        with pytest.raises(InvalidError, match="lacks the key of a secret of the cluster: key_id="):
            sealing.open(value, "zone")


def test_two_values_of_one_secret_have_nothing_in_common() -> None:
    first, second = (Sealing(OLD).seal(SECRET, "zone") for _ in range(2))
    assert first[:12] == second[:12], "form and key"
    assert first[12:24] != second[12:24]
    assert first[24:] != second[24:]
    assert SECRET not in first
    assert is_sealed(first)
    assert not is_sealed(SECRET)


@pytest.mark.parametrize("context", [("zone", "b"), ("scram", "a"), ("zone",), ("zonea",), ("zone", "a", "")])
def test_a_value_opens_in_its_own_context_only(context: tuple[str, ...]) -> None:
    sealed = Sealing(OLD).seal(SECRET, "zone", "a")
    with pytest.raises(InvalidError, match="was changed, or is another's"):
        Sealing(OLD).open(sealed, *context)


@pytest.mark.parametrize("index", [12, 24, 40, 71])
def test_a_changed_value_does_not_open(index: int) -> None:
    sealed = bytearray(Sealing(OLD).seal(SECRET, "zone"))
    sealed[index] ^= 1
    with pytest.raises(InvalidError, match="was changed"):
        Sealing(OLD).open(bytes(sealed), "zone")


@pytest.mark.parametrize("keys", ["short", base64.b64encode(b"k" * 31).decode(), f"{OLD},{OLD[:-4]}", OLD + "!"])
def test_what_is_no_key_is_refused_and_not_shown(keys: str) -> None:
    with pytest.raises(ConfigError, match="32 bytes in base64") as caught:
        Sealing(keys)
    assert keys not in str(caught.value)


def test_without_keys_nothing_is_sealed() -> None:
    assert not Sealing(None)
    with pytest.raises(InvalidError, match=r"metadata\.secret\.keys is not set"):
        Sealing(None).seal(SECRET)
