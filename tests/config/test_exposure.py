"""The warnings at the start: what a network reaches, and nothing else."""

from __future__ import annotations

import pytest

from headrace.config.authorization_settings import STANDARD_AUTHORIZER
from headrace.config.exposure import exposures
from headrace.config.load import load

pytestmark = pytest.mark.requirement("X2")
ACLS, PLAIN, CLEAR, TOKEN = "ACLs are not enforced", "PLAIN sends passwords", "encrypts nothing", "bearer tokens"


def warnings_of(listeners: str, protocols: str = "", **own: str) -> list[str]:
    """The beginnings of the lines."""
    flags: dict[str, object] = {name.replace("_", "."): value for name, value in own.items()}
    flags |= {"listeners": listeners, "listener.security.protocol.map": protocols}
    if "0.0.0.0" in listeners or "::]" in listeners:
        flags |= {"advertised.listeners": "A://kafka:9092"}
    flags |= {"ssl.keystore.location": "key.pem"}
    known = (ACLS, PLAIN, CLEAR, TOKEN)
    return [next(each for each in known if each in line) for line in exposures(load(flags=flags))]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "[::1]"])
def test_what_only_the_machine_reaches_is_not_named(host: str) -> None:
    assert warnings_of(f"A://{host}:9092") == []
    assert warnings_of(f"A://{host}:9092", "A:SASL_PLAINTEXT") == []
    assert warnings_of(f"A://{host}:9092", http_bearer_token_location="tokens") == []


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "kafka.example.com", "[::]", ""])
def test_a_listener_on_a_network(host: str) -> None:
    address = f"A://{host or '0.0.0.0'}:9092"
    assert warnings_of(address) == [ACLS]
    assert warnings_of(address, "A:SSL") == [ACLS]
    assert warnings_of(address, "A:SASL_PLAINTEXT") == [CLEAR, ACLS]
    assert warnings_of(address, authorizer_class_name=STANDARD_AUTHORIZER) == []
    assert warnings_of(address, "A:SASL_PLAINTEXT", authorizer_class_name=STANDARD_AUTHORIZER) == [CLEAR]


def test_plain_needs_tls_on_every_address() -> None:
    own = {"sasl_enabled_mechanisms": "SCRAM-SHA-256,PLAIN"}
    assert warnings_of("A://127.0.0.1:9092", "A:SASL_PLAINTEXT", **own) == [PLAIN]
    assert warnings_of("A://10.0.0.7:9092", "A:SASL_PLAINTEXT", **own) == [PLAIN, CLEAR, ACLS]
    assert warnings_of("A://127.0.0.1:9092", "A:SASL_SSL", **own) == []
    only_there = {"listener.name.b.sasl.enabled.mechanisms": "PLAIN"}
    assert warnings_of("A://127.0.0.1:1,B://127.0.0.1:2", "A:SASL_PLAINTEXT,B:SASL_PLAINTEXT", **only_there) == [PLAIN]


def test_the_listener_for_controllers_is_one_of_them() -> None:
    assert warnings_of("A://127.0.0.1:1,C://10.0.0.7:2", "C:SASL_PLAINTEXT", controller_listener_names="C") == [
        CLEAR,
        ACLS,
    ]


def test_tokens_without_tls_on_a_network() -> None:
    own = {"http_host": "10.0.0.7", "http_bearer_token_location": "tokens"}
    assert warnings_of("A://127.0.0.1:1", **own) == [TOKEN]
    assert warnings_of("A://127.0.0.1:1", http_ssl_keystore_location="key.pem", **own) == []
