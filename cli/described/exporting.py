"""`headrace cluster export`: print a cluster as a file; of another one, what `headrace cluster apply` takes here.

Place: under cli/cluster.py; the cluster is read by current.py and written by schema.py. `move` is pure: it makes of a
Kafka what can be applied here, and notes on the rest.
Invariant: nothing is left out or changed without a note. The file can be applied once each user has a password:
until then `apply` refuses it, because the file with the password is missing.
Invariant of notes: one line each, also if a name in the cluster has several, without control characters; no secret.
Source: KIP-546 (quotas of a broker), KIP-554 (no cluster shows a password), KIP-714, KIP-1142.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import yaml

from headrace.cli.client.quotas import IP, KEYS, Entity, Limits, shown_entity
from headrace.cli.client.users import MECHANISMS
from headrace.cli.configs import BROKER, CLIENT_METRICS, GROUP, describe_configs, names_with_configs
from headrace.cli.described.current import EVERYTHING, FoundCluster, read_cluster
from headrace.cli.described.diff import shown_limit
from headrace.cli.described.schema import described_file
from headrace.cli.described.state import ClusterState, ObjectKind, TopicState
from headrace.cli.options import name_patterns
from headrace.cli.output import write, write_error
from headrace.cli.tables import open_cluster
from headrace.config.broker_configs import dynamic_definition
from headrace.config.client_metrics import CLIENT_METRICS_CONFIGS
from headrace.config.config_definition import ConfigDefinition
from headrace.config.declared import declared
from headrace.config.group_configs import GROUP_CONFIGS
from headrace.config.link_configs import TOPICS, TopicFilter
from headrace.config.refused import why_refused
from headrace.config.topic_configs import LINK_NAME, TOPIC_CONFIGS, why_invalid
from headrace.protocol.client.cluster import KafkaCluster
from headrace.storage.client_text import one_line, shown

SET_FOR_ONE_BROKER, SET_IN_FILE = 2, 4
"""Kafka's ConfigSource of values of one broker: set at run time, and in its file."""
OF_EACH_BROKER = ("producer_byte_rate", "consumer_byte_rate")
"""Quotas that each broker of Kafka keeps by itself, and the cluster as a whole here."""
_ITS_OWN = (
    "advertised.listeners",
    "broker.id",
    "controller.listener.names",
    "controller.quorum.",
    "listener.name.",
    "listener.security.protocol.map",
    "listeners",
    "log.dir",
    "log.dirs",
    "metadata.log.dir",
    "node.id",
    "process.roles",
    "zookeeper.",
)
"""Settings of a broker's file that say where it is: agents have theirs. With a dot at the end, all that begin so."""
NAMES_SHOWN = 5
WITHOUT_AUTHORIZER = "acls: the source has no authorizer, so each of its clients may do everything: none to export"


def add_export(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command, without those that name the cluster."""
    parser.add_argument(
        "--only", action="append", default=[], choices=list(ObjectKind), metavar="KIND", help=", ".join(ObjectKind)
    )
    parser.add_argument(
        "--from-kafka",
        metavar="HOST:PORT[,..]",
        help="another cluster: write what can be applied here, and as comments what is different",
    )
    parser.add_argument(
        "--topics",
        action="append",
        default=[],
        type=name_patterns,
        metavar="PATTERN[,..]",
        help="only these topics (RE2, whole names); with --from-kafka none without it, as a link creates its topics",
    )


def run_export(args: argparse.Namespace) -> int:
    """Print the cluster; with --json, as JSON."""
    kinds = {ObjectKind(kind) for kind in args.only} or set(EVERYTHING)
    head: list[str] = []
    if args.from_kafka is None:
        with open_cluster(args) as cluster:
            found = _with_topics(args, read_cluster(cluster, kinds))
    else:
        found, head = _moved(args, kinds - {ObjectKind.LINK})
    for line in head:
        write_error(line)
    if found.facts.secret_configs:
        names = ", ".join(sorted(found.facts.secret_configs))
        write_error(f"warning: left out, because they are secret: {names}")
    text = "".join(f"# {line}\n" for line in head) + described_file(found.state, args.secrets)
    if args.json:
        text = json.dumps(yaml.safe_load(text)) + "\n"
    write(text, end="")
    return 0


def _with_topics(args: argparse.Namespace, found: FoundCluster) -> FoundCluster:
    """The cluster with those topics alone that are asked for."""
    if not args.topics:
        return found
    wanted = TopicFilter({TOPICS: ",".join(args.topics)})
    topics = {name: topic for name, topic in found.state.topics.items() if wanted.matches(name)}
    return found._replace(state=replace(found.state, topics=topics))


def _moved(args: argparse.Namespace, kinds: Collection[ObjectKind]) -> tuple[FoundCluster, list[str]]:
    """Return what can be applied here of the cluster of --from-kafka, and the comments on it."""
    from headrace.cli.link_source import open_source, source_configs  # here: links need more than other tools

    with open_source(source_configs(args.config, args.from_kafka)) as source:
        without = set() if args.topics or args.only else {ObjectKind.TOPIC}
        found = _with_topics(args, read_cluster(source, set(kinds) - without))
        is_headrace, has_acls = found.facts.can_lower_counts, found.facts.has_acls
        facts = read_facts(source, is_headrace=is_headrace, has_acls=has_acls)
    state, notes = move(found.state, facts)
    return found._replace(state=state), list(comments(args.from_kafka, facts, notes))


class KafkaFacts(NamedTuple):
    """What is known of the source besides its objects."""

    brokers: int = 1
    """The number by which quotas of each broker are multiplied; 1 for a Headrace."""
    has_acls: bool = True
    unlisted: tuple[str, ...] = ()
    """Sections of the file of which the source does not list the objects."""
    of_one_broker: Mapping[str, str] = {}
    """Configs that were set at run time for single brokers: `broker 1, 2`."""
    in_files: Mapping[str, str] = {}
    """Settings of the brokers' files, with their values; empty for a secret."""


class MovedCluster(NamedTuple):
    """The state that can be applied here, and what is different."""

    state: ClusterState
    notes: list[str]


def read_facts(cluster: KafkaCluster, *, is_headrace: bool, has_acls: bool) -> KafkaFacts:
    """Ask each broker for its settings. Errors as `require`."""
    nodes = cluster.nodes()
    at, values = defaultdict[str, list[str]](list), dict[str, str]()
    for node in () if is_headrace else nodes:
        for config in describe_configs(cluster, (BROKER, str(node))):
            if config.config_source == SET_FOR_ONE_BROKER:
                at[str(config.name)].append(str(node))
            elif config.config_source == SET_IN_FILE:
                values.setdefault(str(config.name), "" if config.is_sensitive else str(config.value or ""))
    sections = (("groupConfigs", GROUP), ("clientMetrics", CLIENT_METRICS))
    return KafkaFacts(
        1 if is_headrace else len(nodes),
        has_acls,
        tuple(section for section, kind in sections if names_with_configs(cluster, kind) is None),
        {name: f"broker {', '.join(ids)}" for name, ids in at.items()},
        {name: value for name, value in values.items() if not _is_its_own(name)},
    )


def _is_its_own(name: str) -> bool:
    return any(name.startswith(own) if own.endswith(".") else name == own for own in _ITS_OWN)


def move(found: ClusterState, facts: KafkaFacts) -> MovedCluster:
    """Return what of the cluster can be applied here, with a note on all else."""
    notes: list[str] = [] if facts.has_acls else [WITHOUT_AUTHORIZER]
    notes += (f"{each}: this Kafka does not list them, so none are exported" for each in facts.unlisted)
    users = {key: user for key, user in found.users.items() if key[1] in MECHANISMS}
    if users:
        names = _listed(sorted({name for name, _ in users}))
        notes.append(f"users: no Kafka shows a password: put those of {names} into the files that are named below")
    state = replace(
        found,
        topics=_topics(found.topics, notes),
        users=users,
        quotas=_quotas(found.quotas, facts.brokers, notes),
        configs=_cluster_configs(found.configs, notes),
        links={},
        groups=_named(found.groups, "group", _judge_by(GROUP_CONFIGS), notes),
        client_metrics=_named(found.client_metrics, "client metrics", _judge_by(CLIENT_METRICS_CONFIGS), notes),
    )
    if state.client_metrics:
        notes.append("clientMetrics: stored and shown, but clients are not asked for their metrics")
    notes += (
        f"{name} of {brokers} alone: not exported; here clusterConfigs are for all brokers"
        for name, brokers in sorted(facts.of_one_broker.items())
    )
    notes += (_of_file(name, value) for name, value in sorted(facts.in_files.items()))
    return MovedCluster(state, [one_line(note) for note in notes])


Judge = Callable[[str, str], str | None]
"""Returns why a config cannot have a value here, and what it will be instead; None: it can."""


def _judge_by(definitions: Mapping[str, ConfigDefinition]) -> Judge:
    def judged(name: str, value: str) -> str | None:
        known = definitions.get(name)
        if known is None:
            return "there is no such config here"
        reason = known.why_invalid(value)
        return None if reason is None else f"{reason}; here it is {known.default or 'empty'}"

    return judged


def _of_topic(name: str, value: str) -> str | None:
    if name not in TOPIC_CONFIGS:
        return "there is no such config here"
    reason = why_invalid(name, value)
    if reason is None:
        return None
    return f"{reason.rpartition(' is ')[2]}; here it is {TOPIC_CONFIGS[name].default or 'empty'}"


def _topics(found: Mapping[str, TopicState], notes: list[str]) -> dict[str, TopicState]:
    """The topics without the configs that they cannot have, which are named once with all of their topics."""
    configs = {name: topic.configs for name, topic in found.items()}
    kept = _kept(configs, _of_topic, "topic", notes)
    return {name: replace(topic, configs=kept[name]) for name, topic in found.items()}


def _named(
    found: Mapping[str, Mapping[str, str]], what: str, judge: Judge, notes: list[str]
) -> dict[str, Mapping[str, str]]:
    return {name: configs for name, configs in _kept(found, judge, what, notes).items() if configs}


def _kept(
    found: Mapping[str, Mapping[str, str]], judge: Judge, what: str, notes: list[str]
) -> dict[str, Mapping[str, str]]:
    refused = defaultdict[str, list[str]](list)
    kept: dict[str, Mapping[str, str]] = {}
    for owner, configs in sorted(found.items()):
        own = {name: value for name, value in configs.items() if name != LINK_NAME}
        reasons = {name: judge(name, value) for name, value in own.items()}
        kept[owner] = {name: value for name, value in own.items() if reasons[name] is None}
        for name, reason in reasons.items():
            if reason is not None:
                refused[f"{name}={shown(own[name])} is left out: {reason}"].append(owner)
    notes += (f"{what} {_listed(owners)}: {reason}" for reason, owners in refused.items())
    return kept


def _listed(names: list[str]) -> str:
    """Some of the names, and how many more there are."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(map(shown, names[:NAMES_SHOWN])) + (f" and {more:,} more" if more > 0 else "")


def _quotas(found: Mapping[Entity, Limits], brokers: int, notes: list[str]) -> dict[Entity, Limits]:
    kept: dict[Entity, Limits] = {}
    for entity, limits in found.items():
        if any(kind == IP and name is not None and not _is_address(name) for kind, name in entity):
            notes.append(
                f"quotas of {shown_entity(entity)}: left out: a quota is of an address here, not of a host name"
            )
            continue
        kept[entity] = {name: value * (brokers if name in OF_EACH_BROKER else 1) for name, value in limits.items()}
        notes += (
            f"quotas of {shown_entity(entity)}: {name} {shown_limit(limits[name])} of each of {brokers} brokers becomes"
            f" {shown_limit(value)} of the cluster"
            for name, value in kept[entity].items()
            if value != limits[name]
        )
        for name in limits.keys() - set(KEYS):
            del kept[entity][name]
            notes.append(f"quotas of {shown_entity(entity)}: {name} is left out: there is no such quota here")
    return {entity: limits for entity, limits in kept.items() if limits}


def _is_address(name: str) -> bool:
    return ":" in name or name.replace(".", "").isdecimal()


def _cluster_configs(found: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    kept = {}
    for name, value in found.items():
        definition = dynamic_definition(name)
        reason = _why_not_dynamic(name) if definition is None else definition.why_invalid(value)
        if reason is None:
            kept[name] = value
        else:
            notes.append(f"clusterConfigs: {name}={shown(value)} is left out: {reason}")
    return kept


def _why_not_dynamic(name: str) -> str:
    if name in declared():
        return "agents read it when they start: give it to them"
    return why_refused(name) or "there is no such setting here"


def _of_file(name: str, value: str) -> str:
    """Return what becomes of a setting in the brokers' files."""
    given = f"server.properties: {name}" + (f"={shown(value)}" if value else "")
    if dynamic_definition(name) is not None:
        return f"{given}: not exported; add it to clusterConfigs if you want it here"
    if name in declared():
        return f"{given}: not exported; give it to the agents if you want it here"
    return f"{given}: {why_refused(name) or 'there is no such setting here'}"


def comments(source: str, facts: KafkaFacts, notes: list[str]) -> Iterator[str]:
    """Yield the lines above the file's sections."""
    brokers = "1 broker" if facts.brokers == 1 else f"{facts.brokers} brokers"
    yield f"From the cluster at {one_line(source)}, {brokers}, for `headrace cluster apply`."
    yield "Not in this file: passwords, users of PLAIN, Kerberos and OAUTHBEARER, delegation tokens, offsets of groups."
    yield from (["Different here:"] if notes else ["Nothing else is different here."])
    yield from (f"- {note}" for note in notes)
