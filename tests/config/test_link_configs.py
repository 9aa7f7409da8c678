"""X14: configs of a link: which topics it copies, what it refuses, and that no secret is in a message."""

from __future__ import annotations

import pytest

from headrace.config.link_configs import (
    PATTERN_LIST_CHARACTERS_MAX,
    PATTERNS_MAX,
    SECRETS,
    TopicFilter,
    is_reference,
    matches,
    patterns,
    shown,
    why_invalid,
    why_no_name,
)

pytestmark = pytest.mark.requirement("X14")
SOURCE = {"bootstrap.servers": "kafka-1:9092, [::1]:9092", "topics": "orders.*"}


def test_patterns_match_whole_names_and_excluded_ones_are_left_out() -> None:
    configs = {"topics": "orders.*, payments", "topics.exclude": r"orders\.test.*"}
    wanted = ["orders", "orders.eu", "payments"]
    others = ["orders.test", "orders.test.eu", "old-orders", "payments2", "", "__orders"]
    assert [name for name in (*wanted, *others) if matches(configs, name)] == wanted
    assert not matches({}, "orders")


def test_topics_of_the_source_itself_need_a_pattern_that_names_them() -> None:
    found = TopicFilter({"topics": ".*"})
    assert (found.matches("a"), found.matches("_schemas"), found.matches("__consumer_offsets")) == (True, True, False)
    assert TopicFilter({"topics": "__audit"}).matches("__audit")


def test_a_comma_between_braces_is_part_of_a_pattern() -> None:
    assert patterns("a{1,3}, b,,c{2}") == ["a{1,3}", "b", "c{2}"]
    assert patterns("}{a,b") == ["}{a,b"]
    assert matches({"topics": "a{1,3},b"}, "aaa")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"topics": ""}, "topics: name at least one topic"),
        ({"topics": "("}, "topics: '(' is not RE2 syntax: missing ): ("),
        ({"topics": r"(a)\1"}, r"topics: '(a)\\1' is not RE2 syntax"),
        ({"topics": "a" * 5_000}, "pattern of more than 4096 characters"),
        ({"topics": "a" * (PATTERN_LIST_CHARACTERS_MAX + 1)}, "topics: longer than 16384 characters"),
        ({"topics": ",".join(["a"] * (PATTERNS_MAX + 1))}, "topics: more than 100 patterns"),
        ({"topics.exclude": "["}, "topics.exclude: '[' is not RE2 syntax"),
        ({"bootstrap.servers": ""}, "bootstrap.servers: name the source: HOST:PORT"),
        ({"bootstrap.servers": "kafka"}, "bootstrap.servers: not HOST:PORT: 'kafka'"),
        ({"bootstrap.servers": "kafka:0"}, "bootstrap.servers: not HOST:PORT: 'kafka:0'"),
        ({"bootstrap.servers": "kafka:65536"}, "not HOST:PORT"),
        ({"bootstrap.servers": "http://kafka:9092"}, "not HOST:PORT"),
        ({"bootstrap.servers": ",".join(["a:1"] * 21)}, "more than 20 addresses"),
        ({"bootstrap.server": "a:1"}, "bootstrap.server: links have no such config"),
        ({"link.state": "stopped"}, "link.state: not one of active, paused: 'stopped'"),
        ({"link.max.bytes.per.second": "-1"}, "link.max.bytes.per.second: not a number from 0"),
        ({"link.max.bytes.per.second": "1_0"}, "link.max.bytes.per.second: not a number"),
        ({"link.shares": "65"}, "link.shares: not a number from 1 to 64: '65'"),
        ({"security.protocol": "TLS"}, "security.protocol: not one of PLAINTEXT, SSL"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism: not one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512: 'GSSAPI'"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism: security.protocol=SASL_SSL needs one of"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
            "sasl.username: set sasl.username and sasl.pass",
        ),
        ({"ssl.keystore.key": "-----BEGIN"}, "ssl.keystore.key: a client's certificate needs"),
        ({"sasl.username": "a\0"}, "sasl.username: has a NUL character"),
        ({"ssl.truststore.certificates": "x" * 65_537}, "longer than 65536 characters"),
    ],
)
def test_a_config_that_cannot_be_used_is_named(changed: dict[str, str], message: str) -> None:
    assert why_invalid(SOURCE) is None
    assert message in (why_invalid({**SOURCE, **changed}) or "")


def test_whole_logins_are_accepted() -> None:
    scram = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
    assert why_invalid({**SOURCE, **scram, "sasl.username": "u", "sasl.password": "p"}) is None
    assert why_invalid({**SOURCE, **scram, "sasl.jaas.config": 'X required username="u" password="p";'}) is None
    certificate = {"ssl.keystore.certificate.chain": "C", "ssl.keystore.key": "${env:HEADRACE_LINK_KEY}"}
    assert why_invalid({**SOURCE, "security.protocol": "SSL", **certificate}) is None


def test_no_message_and_no_list_shows_a_secret() -> None:
    secret = "x" * 70_000 + "\0hunter2"
    assert not [name for name in SECRETS if "hunter2" in (why_invalid({**SOURCE, name: secret}) or "")]
    assert shown({"sasl.password": "hunter2", "topics": "a"}) == {"sasl.password": None, "topics": "a"}


@pytest.mark.parametrize(
    ("name", "is_good"),
    [("old", True), ("a.b_c-1", True), ("n" * 100, True)]
    + [(name, False) for name in ("", ".", "..", "a b", "a/b", "ü", "n" * 101, "a\n")],
)
def test_a_name_of_a_link(name: str, is_good: bool) -> None:
    assert (why_no_name(name) is None) is is_good


@pytest.mark.parametrize(
    "value",
    ["${env:PGPASSWORD}", "${file:/a b}", "${env:HEADRACE_LINK_A}b", "${x:HEADRACE_LINK_A}", "${env:HEADRACE_LINK_}"],
)
def test_a_link_names_no_other_variable_of_its_workers_and_no_file(value: str) -> None:
    """Else a client that may create a link could have any of them sent, as a password, to an address that it chose."""
    assert is_reference("${env:HEADRACE_LINK_A}")
    assert not is_reference(value)
    reason = why_invalid({"bootstrap.servers": "a:1", "topics": "a", "sasl.password": value})
    assert reason is not None
    assert reason.startswith("sasl.password: only secrets name a variable")
    assert (
        why_invalid({"bootstrap.servers": "a:1", "topics": "a", "sasl.username": "${env:HEADRACE_LINK_A}"}) or ""
    ).startswith("sasl.username")
