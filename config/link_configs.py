"""The configs of a link: where its source is, how to log in there, which topics are copied, how fast.

Place: the request LINKS checks with it (protocol/link_requests.py), workers read it (compactor/links), and so do the
tools. A link is a resource of the metadata log, of type LINK_RESOURCE; what it does is decisions/0110.
Invariant: values that passed `why_invalid` can be used by the worker: patterns compile, numbers are numbers, and what a
login needs is there. A value that is secret is never shown; metastore/link_secrets.py seals it.
Patterns are RE2 and match whole names, in time linear in the name; their length and their number are bounded
(config/patterns.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from headrace.config import topic_configs
from headrace.config.config_definition import LONG_MAX
from headrace.config.patterns import compile_pattern

LINK_RESOURCE = 100
"""The type of the metadata log's ConfigRecords of links: above all of Kafka's."""
LINK_NAME = topic_configs.LINK_NAME
"""The config of a topic that is a copy."""

BOOTSTRAP_SERVERS, TOPICS, EXCLUDE = "bootstrap.servers", "topics", "topics.exclude"
STATE, CREATOR, MAX_RATE = "link.state", "link.creator", "link.max.bytes.per.second"
SHARES, WATCH_MS, FENCES = "link.shares", "link.watch.ms", "link.fence.source"
GROUPS, EXCLUDED_GROUPS, DELETES = "groups", "groups.exclude", "link.delete.topics"
ACTIVE, PAUSED = "active", "paused"
PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
USERNAME, PASSWORD = "sasl.username", "sasl.password"
TRUSTED, CERTIFICATES, KEY = "ssl.truststore.certificates", "ssl.keystore.certificate.chain", "ssl.keystore.key"
KEY_PASSWORD, CHECKS_NAME = "ssl.key.password", "ssl.endpoint.identification.algorithm"
SECRETS = frozenset({PASSWORD, JAAS, KEY, KEY_PASSWORD})
"""Configs that are stored sealed, and never shown."""
SEALED = "sealed:"
"""What a stored value begins with that is sealed: base64 follows."""
OWN = frozenset({CREATOR, FENCES})
"""Configs that the agent sets: requests do not name them."""

DEFAULTS: dict[str, str] = {
    BOOTSTRAP_SERVERS: "",
    TOPICS: "",
    EXCLUDE: "",
    STATE: ACTIVE,
    CREATOR: "",
    MAX_RATE: "0",
    SHARES: "4",
    WATCH_MS: "600000",
    FENCES: "false",
    GROUPS: "",
    EXCLUDED_GROUPS: "",
    DELETES: "false",
    PROTOCOL: "PLAINTEXT",
    MECHANISM: "",
    JAAS: "",
    USERNAME: "",
    PASSWORD: "",
    TRUSTED: "",
    CERTIFICATES: "",
    KEY: "",
    KEY_PASSWORD: "",
    CHECKS_NAME: "https",
}
"""Every config of a link, and its value if it has none."""

LINKS_MAX = 100
"""Links of one cluster."""
NAME_CHARACTERS_MAX = 100
VALUE_CHARACTERS_MAX = 65_536
PATTERNS_MAX = 100
"""Patterns of one list."""
PATTERN_LIST_CHARACTERS_MAX = 16_384
SERVERS_MAX = 20
_NAME = re.compile(r"[A-Za-z0-9._-]+")
REFERENCE_PREFIX = "HEADRACE_LINK_"
"""What the names of variables begin with that a link may name. Others, and files, are the worker's: a client that may
create a link could let it send them, as a password, to any address.
"""
_REFERENCE = re.compile(r"\$\{env:" + REFERENCE_PREFIX + r"[A-Za-z0-9_]+\}")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SHARE = "share"
"""Kafka's type of groups without committed offsets."""
_OF_CONSUMERS = ("consumer", "streams", "")
"""Kafka's protocol types of groups that may have offsets: the empty one has offsets without ever having had members."""
_INTERNAL = "__"
"""What the names of topics begin with that belong to a cluster itself: only a pattern with it matches them."""


def why_no_name(name: str) -> str | None:
    """Return None if a link can have this name."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        return "the name of a link has ASCII letters, digits, '.', '_' and '-'"
    if len(name) > NAME_CHARACTERS_MAX:
        return f"the name of a link has at most {NAME_CHARACTERS_MAX} characters"
    return None


def is_reference(value: str) -> bool:
    """Return whether it names a variable of the worker, as ${env:HEADRACE_LINK_NAME}: it is stored as it is."""
    return _REFERENCE.fullmatch(value) is not None


def patterns(value: str) -> list[str]:
    """The patterns of a list. A comma between braces, as in `a{1,3}`, is part of its pattern."""
    found, begin, depth = list[str](), 0, 0
    for position, letter in enumerate(value):
        depth = max(depth + (letter == "{") - (letter == "}"), 0)
        if letter == "," and not depth:
            found.append(value[begin:position])
            begin = position + 1
    return [each.strip() for each in (*found, value[begin:]) if each.strip()]


def value_of(configs: Mapping[str, str], name: str) -> str:
    """The value in force of a config of a link."""
    return configs.get(name, DEFAULTS[name])


def is_paused(configs: Mapping[str, str]) -> bool:
    """Return whether nothing is copied now."""
    return value_of(configs, STATE) == PAUSED


class NameFilter:
    """The names that two lists of patterns choose, with the patterns compiled once."""

    def __init__(self, wanted: str, excluded: str) -> None:
        """ValueError if a pattern is none; `why_invalid` refuses such configs."""
        self._wanted = [(each, compile_pattern(each)) for each in patterns(wanted)]
        self._excluded = [compile_pattern(each) for each in patterns(excluded)]

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def matches(self, name: str) -> bool:
        """Return whether the name is chosen. Those of the cluster itself (`__consumer_offsets`) are chosen only by a
        pattern that begins as they do.
        """
        is_internal = name.startswith(_INTERNAL)
        wanted = (each for text, each in self._wanted if not is_internal or text.startswith(_INTERNAL))
        if not any(each.fullmatch(name) for each in wanted):
            return False
        return not any(each.fullmatch(name) for each in self._excluded)


class TopicFilter(NameFilter):
    """The topics that a link copies."""

    def __init__(self, configs: Mapping[str, str]) -> None:
        """ValueError if a pattern is none."""
        super().__init__(value_of(configs, TOPICS), value_of(configs, EXCLUDE))


class GroupFilter(NameFilter):
    """The groups of which a link copies the offsets; none by default."""

    def __init__(self, configs: Mapping[str, str]) -> None:
        """ValueError if a pattern is none."""
        super().__init__(value_of(configs, GROUPS), value_of(configs, EXCLUDED_GROUPS))

    def names(self, group_id: str, kind: str, protocol_type: str) -> bool:
        """Return whether the link names the group, with Kafka's type and protocol type: also one without offsets, to
        say so.
        """
        return (protocol_type in _OF_CONSUMERS or kind == SHARE) and self.matches(group_id)


def matches(configs: Mapping[str, str], topic: str) -> bool:
    """Return whether a link with these configs copies the topic; for many topics, keep a TopicFilter."""
    return TopicFilter(configs).matches(topic)


def shown(configs: Mapping[str, str]) -> dict[str, str | None]:
    """The configs for people, by name; None for a secret."""
    return {name: None if name in SECRETS else value for name, value in sorted(configs.items())}


def why_invalid(configs: Mapping[str, str]) -> str | None:
    """Return None if a link can have these configs, given in clear, as a whole; else a message that names the config,
    and no secret.
    """
    for name, value in configs.items():
        if reason := _why_no_value(name, value):
            return reason
    if not patterns(value_of(configs, TOPICS)):
        return f"{TOPICS}: name at least one topic, or a pattern such as 'orders.*'"
    return _why_no_servers(value_of(configs, BOOTSTRAP_SERVERS)) or _why_no_login(configs)


def _why_no_value(name: str, value: str) -> str | None:
    if name not in DEFAULTS:
        return f"{name}: links have no such config; they have {', '.join(sorted(set(DEFAULTS) - OWN))}"
    if len(value) > VALUE_CHARACTERS_MAX:
        return f"{name}: longer than {VALUE_CHARACTERS_MAX} characters"
    if "\0" in value:
        return f"{name}: has a NUL character"
    if value.startswith("${") and (name not in SECRETS or not is_reference(value)):
        return f"{name}: only secrets name a variable, and only one of the workers' ${{env:{REFERENCE_PREFIX}...}}"
    check = _CHECKS.get(name)
    reason = None if check is None else check(value)
    return None if reason is None else f"{name}: {reason}"


def _why_no_patterns(value: str) -> str | None:
    if len(value) > PATTERN_LIST_CHARACTERS_MAX:
        return f"longer than {PATTERN_LIST_CHARACTERS_MAX} characters"
    found = patterns(value)
    if len(found) > PATTERNS_MAX:
        return f"more than {PATTERNS_MAX} patterns"
    for each in found:
        try:
            compile_pattern(each)
        except ValueError as error:
            return f"{each!r} is {error}"
    return None


def _one_of(allowed: Iterable[str]) -> Callable[[str], str | None]:
    names = tuple(allowed)
    return lambda value: None if value in names else f"not one of {', '.join(filter(None, names))}: {value!r}"


def _between(low: int, high: int) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        is_number = value.isascii() and value.isdecimal() and len(value) < 20
        return None if is_number and low <= int(value) <= high else f"not a number from {low} to {high}: {value!r}"

    return check


def _why_no_servers(value: str) -> str | None:
    servers = [each.strip() for each in value.split(",") if each.strip()]
    if not servers:
        return f"{BOOTSTRAP_SERVERS}: name the source: HOST:PORT"
    if len(servers) > SERVERS_MAX:
        return f"{BOOTSTRAP_SERVERS}: more than {SERVERS_MAX} addresses"
    for each in servers:
        host, colon, port = each.rpartition(":")
        is_port = port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 65_536
        if not colon or not host or not is_port or any(letter.isspace() for letter in host) or "/" in host:
            return f"{BOOTSTRAP_SERVERS}: not HOST:PORT: {each!r}"
    return None


def _why_no_login(configs: Mapping[str, str]) -> str | None:
    protocol = value_of(configs, PROTOCOL)
    if protocol.startswith("SASL"):
        if not value_of(configs, MECHANISM):
            return f"{MECHANISM}: {PROTOCOL}={protocol} needs one of {', '.join(_MECHANISMS[1:])}"
        if not value_of(configs, JAAS) and not (value_of(configs, USERNAME) and value_of(configs, PASSWORD)):
            return f"{USERNAME}: set {USERNAME} and {PASSWORD}, or {JAAS}"
    if bool(value_of(configs, CERTIFICATES)) != bool(value_of(configs, KEY)):
        return f"{KEY}: a client's certificate needs {CERTIFICATES} and {KEY}"
    return None


_CHECKS: dict[str, Callable[[str], str | None]] = {
    TOPICS: _why_no_patterns,
    EXCLUDE: _why_no_patterns,
    STATE: _one_of((ACTIVE, PAUSED)),
    MAX_RATE: _between(0, LONG_MAX),
    SHARES: _between(1, 64),
    WATCH_MS: _between(0, 7 * 86_400_000),
    FENCES: _one_of(("true", "false")),
    GROUPS: _why_no_patterns,
    EXCLUDED_GROUPS: _why_no_patterns,
    DELETES: _one_of(("true", "false")),
    PROTOCOL: _one_of(_PROTOCOLS),
    MECHANISM: _one_of(_MECHANISMS),
    CHECKS_NAME: _one_of(("https", "")),
}
