"""What a link's source would be: the configs of a link from a client's properties file, and a look at the source.

Place: under links.py (`create`, `create --dry-run`) and the links of cluster files (described/).
Invariant: certificates and keys are sent as texts, not as names of files, which no worker has. A secret that the file
has as `${env:NAME}` or `${file:PATH}` is sent like that: the workers resolve it; the look resolves it on this machine.
The look changes nothing, here or at the source.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headrace.cli.client.groups import list_groups
from headrace.cli.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.cli.configs import describe_topics
from headrace.cli.output import write
from headrace.cli.tables import show
from headrace.config.errors import ConfigError
from headrace.config.link_configs import (
    BOOTSTRAP_SERVERS,
    CERTIFICATES,
    DEFAULTS,
    KEY,
    MAX_RATE,
    OWN,
    SHARE,
    TRUSTED,
    GroupFilter,
    TopicFilter,
    is_reference,
    value_of,
)
from headrace.config.load import read_properties, resolved
from headrace.config.topic_configs import LINK_NAME, why_invalid
from headrace.metastore.api.linked_groups import NO_OFFSETS
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.client.login import Login
from headrace.protocol.client.transport import ClientConfig, parse_servers
from headrace.protocol.link_requests import LinkOp, LinkRequest
from headrace.storage.errors import HeadraceError

_TRUSTED_FILES = ("ssl.truststore.location", "ssl.ca.location")
_KEY_FILE = "ssl.keystore.location"
_IGNORED = ("client.id", "request.timeout.ms", "ssl.truststore.type", "ssl.keystore.type")
"""Settings of a client's file that a link does not have: it has its own."""
_OF_TOPIC = 1
"""The source of a config that was set for the topic."""
UNKNOWN = -1
SEEN_COLUMNS = ("topic", "partitions", "records", "bytes", "problem", "notes")
GROUP_COLUMNS = ("group", "kind", "state", "note")
MEGABYTE = 1_000_000


def source_configs(path: Path | None, servers: str | None) -> dict[str, str]:
    """The configs of a link to this source. ConfigError names a setting that a link cannot have."""
    given = {} if path is None else read_properties(path)
    found = {} if servers is None else {BOOTSTRAP_SERVERS: servers}
    for name, value in given.items():
        if name in _TRUSTED_FILES:
            found[TRUSTED] = _text(name, value)
        elif name == _KEY_FILE:
            found |= _key_and_certificates(value)
        elif name in DEFAULTS and name not in OWN:
            found.setdefault(name, value)
        elif name not in _IGNORED:
            raise ConfigError(f"{path}: a link has no setting {name}")
    return found


def _text(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot read {path} as PEM: {error}") from error


def _key_and_certificates(path: str) -> dict[str, str]:
    """Split a PEM file with a key and its certificates."""
    text = _text(_KEY_FILE, path)
    blocks, block = list[list[str]](), list[str]()
    for line in text.splitlines():
        if line.startswith("-----BEGIN"):
            block = []
            blocks.append(block)
        if blocks:
            block.append(line)
    keys = ["\n".join(each) for each in blocks if "PRIVATE KEY" in each[0]]
    others = ["\n".join(each) for each in blocks if "CERTIFICATE" in each[0]]
    if not keys or not others:
        raise ConfigError(f"{_KEY_FILE}: {path} needs a private key and its certificates, as PEM")
    return {KEY: keys[0] + "\n", CERTIFICATES: "\n".join(others) + "\n"}


def open_source(configs: Mapping[str, str]) -> KafkaCluster:
    """The source, as this machine reaches it. ConfigError for a login that cannot be used."""
    here = {name: str(resolved(value, os.environ)) if is_reference(value) else value for name, value in configs.items()}
    servers = parse_servers(value_of(here, BOOTSTRAP_SERVERS))
    return KafkaCluster.of(ClientConfig(servers, "headrace-link", login=Login.of(here)))


class SeenTopic(NamedTuple):
    """A topic of the source that a link would copy. `problem` not empty: it would not. UNKNOWN for what the source
    does not say.
    """

    topic: str
    partitions: int
    records: int
    bytes: int
    problem: str
    notes: tuple[str, ...]
    """What would be different here."""


def look(source: KafkaCluster, configs: Mapping[str, str], taken: Mapping[str, str]) -> list[SeenTopic]:
    """The topics that a link with these configs would copy, by name. `taken`: names of topics that are here, with the
    link that copies each; empty: none.
    """
    wanted = TopicFilter(configs)
    topics = [topic for topic in source.metadata() if wanted.matches(str(topic.name))]
    places = {(str(t.name), int(p.partition_index)): int(p.leader_id) for t in topics for p in t.partitions}
    starts, ends = (list_offsets(source, dict.fromkeys(places, at)) if places else {} for at in (EARLIEST, LATEST))
    sizes, notes = _sizes(source, places), _notes(source, [str(topic.name) for topic in topics])
    found = []
    for topic in topics:
        name = str(topic.name)
        own = [place for place in places if place[0] == name]
        known = [sizes[place] for place in own if place in sizes]
        found.append(
            SeenTopic(
                name,
                len(own),
                sum(ends[place] - starts[place] for place in own),
                sum(known) if len(known) == len(own) else UNKNOWN,
                _why_taken(name, taken),
                notes.get(name, ()),
            )
        )
    return found


def _why_taken(name: str, taken: Mapping[str, str]) -> str:
    if name not in taken:
        return ""
    if taken[name]:
        return f"link '{taken[name]}' copies a topic of this name"
    return "a topic of this name is here already, and is no copy"


def _sizes(source: KafkaCluster, leaders: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """Bytes of each partition on its leader's disk; nothing if the source does not say."""
    found: dict[tuple[str, int], int] = {}
    if not source.serves(ApiKey.DESCRIBE_LOG_DIRS):
        return found
    request = source.message(ApiKey.DESCRIBE_LOG_DIRS).request(topics=None)
    for node in sorted(set(leaders.values()) - {-1}):
        try:
            answer = source.ask(ApiKey.DESCRIBE_LOG_DIRS, request, node)
        except HeadraceError:
            return {}  # the login may not describe the cluster
        for topic in (topic for place in answer.results for topic in place.topics):
            for partition in topic.partitions:
                place = (str(topic.name), int(partition.partition_index))
                if leaders.get(place) == node:
                    found[place] = int(partition.partition_size)
    return found


def _notes(source: KafkaCluster, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Configs of each topic that it cannot have here, with the reason."""
    try:
        described = describe_topics(source, names)
    except HeadraceError as error:
        return dict.fromkeys(names, (f"its configs cannot be read: {error}",))
    return {name: tuple(filter(None, map(_why_different, configs))) for name, configs in described.items()}


def _why_different(config: Any) -> str | None:
    if int(config.config_source) != _OF_TOPIC or config.name == LINK_NAME:
        return None
    reason = why_invalid(str(config.name), config.value)
    return None if reason is None else f"{config.name} is left out: {reason}"


def dry_run(args: argparse.Namespace, cluster: KafkaCluster, configs: dict[str, str]) -> int:
    """Say what a link with these configs would copy."""
    here = {str(topic.name): "" for topic in cluster.metadata()}
    with open_source(configs) as source:
        seen, groups = look(source, configs, here | _copies(cluster)), _groups(source, configs)
    if args.json:
        found = {"topics": [topic._asdict() for topic in seen], "groups": groups}
        write(json.dumps({**found, **_sums(seen, configs)}))
        return 0
    rows = [topic._asdict() | {"bytes": None if topic.bytes == UNKNOWN else topic.bytes} for topic in seen]
    if groups:
        show(args, groups, GROUP_COLUMNS)
        write()
    show(args, [row | {"notes": "; ".join(row["notes"])} for row in rows], SEEN_COLUMNS)
    sums = _sums(seen, configs)
    size = "an unknown number of bytes" if sums["bytes"] is None else f"{sums['bytes']:,} bytes"
    write(f"would copy {sums['copied']} topics: {sums['records']:,} offsets, {size}{_how_long(sums, configs)}")
    return 0


def _copies(cluster: KafkaCluster) -> dict[str, str]:
    """The topics here that links copy, with their link."""
    links = [link.name for link in cluster.links(LinkRequest(op=LinkOp.LIST)).links]
    shown = {name: cluster.links(LinkRequest(op=LinkOp.SHOW, link=name)).links for name in links}
    return {
        topic.name: name for name, found in shown.items() for link in found for topic in link.topics if topic.is_linked
    }


def _groups(source: KafkaCluster, configs: Mapping[str, str]) -> list[dict[str, str]]:
    """The groups of the source of which the link would copy the offsets."""
    names = GroupFilter(configs)
    listed = list_groups(source).values() if names else ()
    return [
        {
            "group": each["group"],
            "kind": _kind(each),
            "state": each["state"] or "",
            "note": NO_OFFSETS if _kind(each) == SHARE else "",
        }
        for each in listed
        if names.names(each["group"], _kind(each), each["protocol"] or "")
    ]


def _kind(group: Mapping[str, Any]) -> str:
    return str(group["type"] or "classic").lower()


def _sums(seen: Sequence[SeenTopic], configs: dict[str, str]) -> dict[str, Any]:
    copied = [topic for topic in seen if not topic.problem]
    size = None if any(topic.bytes == UNKNOWN for topic in copied) else sum(topic.bytes for topic in copied)
    rate = int(configs.get(MAX_RATE, "0"))
    return {
        "copied": len(copied),
        "records": sum(topic.records for topic in copied),
        "bytes": size,
        "seconds": None if size is None or not rate else -(-size // rate),
    }


def _how_long(sums: dict[str, Any], configs: dict[str, str]) -> str:
    if sums["seconds"] is None:
        return "" if configs.get(MAX_RATE, "0") != "0" else "; with --max-bytes-per-second it says how long that takes"
    return f"; {sums['seconds']:,} s at {int(configs[MAX_RATE]) / MEGABYTE:,.1f} MB/s"
