"""The warnings at the start: what a network reaches, and nothing else."""

from __future__ import annotations

import pytest

from headrace.config.listeners import exposures, http_exposures
from headrace.config.load import load
from headrace.config.settings import STANDARD_AUTHORIZER

pytestmark = pytest.mark.requirement("X2")
ACLS, PLAIN, CLEAR, TOKEN = "ACLs are not enforced", "PLAIN sends passwords", "encrypts nothing", "bearer tokens"
ANY_TOKEN, HTTP = "OAUTHBEARER takes every token", "the HTTP port shows"


def warnings_of(listeners: str, protocols: str = "", **own: str) -> list[str]:
    """The beginnings of the lines."""
    flags: dict[str, object] = {name.replace("_", "."): value for name, value in own.items()}
    flags |= {"listeners": listeners, "listener.security.protocol.map": protocols}
    if "0.0.0.0" in listeners or "::]" in listeners:
        flags |= {"advertised.listeners": "A://kafka:9092"}
    flags |= {"ssl.keystore.location": "key.pem"}
    known = (ACLS, PLAIN, CLEAR, TOKEN, ANY_TOKEN, HTTP)
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


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.7"])
def test_tokens_for_any_service_are_named_on_every_address(host: str) -> None:
    """A token that another service got from its users is a login here."""
    own = {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": "https://issuer/keys"}
    audience, issuer = "sasl.oauthbearer.expected.audience", "sasl.oauthbearer.expected.issuer"

    def named(protocol: str, **more: str) -> list[str]:
        flags = {"listeners": f"A://{host}:9092", "listener.security.protocol.map": f"A:{protocol}"} | own
        flags |= {"ssl.keystore.location": "key.pem"} | {name.replace("_", "."): value for name, value in more.items()}
        (line,) = [line for line in exposures(load(flags=flags)) if ANY_TOKEN in line] or [""]
        return [name for name in (audience, issuer) if name in line]

    both = {"sasl_oauthbearer_expected_audience": "headrace", "sasl_oauthbearer_expected_issuer": "https://issuer"}
    assert named("SASL_SSL") == [audience, issuer]
    assert named("SASL_PLAINTEXT") == [audience, issuer]
    assert named("SASL_SSL", sasl_oauthbearer_expected_audience="headrace") == [issuer]
    assert named("SASL_SSL", sasl_oauthbearer_expected_issuer="https://issuer") == [audience]
    assert named("SASL_SSL", sasl_oauthbearer_expected_audience=" , ") == [audience, issuer]
    assert named("SASL_SSL", **both) == []
    assert named("SSL") == [], "no client logs in by a token"
    assert named("SASL_SSL", sasl_enabled_mechanisms="SCRAM-SHA-512") == []


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", ""])
def test_an_http_port_that_every_client_reads_is_named(host: str) -> None:
    assert warnings_of("A://127.0.0.1:1", http_host=host) == [HTTP]
    assert warnings_of("A://127.0.0.1:1", http_host=host, http_ssl_keystore_location="key.pem") == [HTTP]
    clients = {"http_ssl_keystore_location": "key.pem", "http_ssl_truststore_location": "ca.pem"}
    assert warnings_of("A://127.0.0.1:1", http_host=host, **clients) == []
    assert warnings_of("A://127.0.0.1:1", http_host="127.0.0.1") == []
    settings = load(flags={"http.host": host, "process.roles": "compactor", "listeners": "A://10.0.0.7:1"})
    (line,) = http_exposures(settings)
    assert HTTP in line, "a compactor has no listeners, and the same port"
