"""`headrace configs`: describe, set and delete configs of topics, brokers, groups and loggers.

Place: a Kafka client for a running cluster; Kafka's kafka-configs.sh.
Invariant: a resource is changed completely or not at all; a refusal is one line with the broker's reason. A command
can be repeated safely.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.cli.tables import Row, add_flags, open_cluster, pairs, refuse_twice, say, show
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import ANY, KafkaCluster, require
from headrace.storage.errors import InvalidError, NotFoundError

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE = 0, 1
TOPICS_AT_ONCE = 200
DESCRIPTION = """\
Configs of topics, brokers and groups of a running cluster, and brokers' log levels.

  headrace configs describe --topic orders --all --explain -b 127.0.0.1:9092
  headrace configs set retention.ms=86400000 --topic orders -b 127.0.0.1:9092
  headrace configs delete retention.ms --topic orders -b 127.0.0.1:9092
"""
SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}
"""Kafka's ConfigSource numbers and their names."""
_OWN = {TOPIC: (1,), BROKER: (2, 3), LOGGER: (6,), GROUP: (8,)}
"""The sources of values that were set for the resource itself."""

ResourceName = tuple[int, str]
"""Kafka's number of the resource type, and the resource's name."""
Change = tuple[str, int, str | None]
"""A config's name, SET or DELETE, and the new value."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar="{describe,set,delete}", required=True)
    describing = commands.add_parser("describe", help="show values and their sources")
    describing.add_argument("key", nargs="*", help="show only these configs")
    describing.add_argument("--all", action="store_true", help="defaults, too")
    describing.add_argument("--explain", action="store_true", help="say what each config does")
    setting = commands.add_parser("set", help="set configs")
    setting.add_argument("pair", nargs="+", metavar="KEY=VALUE")
    deleting = commands.add_parser("delete", help="delete configs, so that their defaults apply")
    deleting.add_argument("key", nargs="+")
    for command in (setting, deleting):
        command.add_argument("--validate-only", action="store_true", help="check the change without applying it")
    for command, run in ((describing, run_describe), (setting, run_set), (deleting, run_delete)):
        whose = command.add_mutually_exclusive_group(required=True)
        whose.add_argument("--topic", metavar="NAME")
        whose.add_argument("--broker", metavar="ID", help="one broker")
        whose.add_argument("--brokers", action="store_true", help="the cluster-wide default of all brokers")
        whose.add_argument("--group", metavar="ID")
        whose.add_argument("--logger", metavar="ID", help="log levels of one broker")
        add_flags(command)
        command.set_defaults(run=run)


def run_describe(args: argparse.Namespace) -> int:
    """One line per config."""
    resource = _resource(args)
    with open_cluster(args) as cluster:
        found = describe_configs(cluster, resource, args.key)
    unknown = sorted(set(args.key) - {config.name for config in found})
    if unknown:
        raise NotFoundError(f"unknown config: {', '.join(unknown)}")
    rows = shown(found, None if args.all or args.key or args.explain else resource[0])
    columns = ("config", "value", "source", "read_only")
    if not args.json:
        rows = [{**row, "value": "(secret)"} if row["sensitive"] else row for row in rows]
    show(args, rows, (*columns, "meaning") if args.explain else columns)
    return 0


def run_set(args: argparse.Namespace) -> int:
    """Set the configs."""
    return _change(args, [(name, SET, value) for name, value in pairs(args.pair, "config").items()])


def run_delete(args: argparse.Namespace) -> int:
    """Delete the configs."""
    return _change(args, [(name, DELETE, None) for name in args.key])


def _change(args: argparse.Namespace, changes: Sequence[Change]) -> int:
    resource = _resource(args)
    refuse_twice([name for name, _, _ in changes], "config")
    with open_cluster(args) as cluster:
        cluster.look_again(lambda: change_configs(cluster, resource, changes, validate_only=args.validate_only))
    outcome = "would be accepted" if args.validate_only else "done"
    say(
        args,
        f"{outcome}: {', '.join(name for name, _, _ in changes)}",
        configs=[c[0] for c in changes],
        outcome=outcome,
    )
    return 0


def describe_configs(cluster: KafkaCluster, resource: ResourceName, keys: Iterable[str] = ()) -> list[Any]:
    """A resource's configs as in DescribeConfigsResponse; without keys, all of them."""
    (answer,) = _describe(cluster, [resource], keys, _whom_to_ask(cluster, resource))
    return list(answer.configs)


def describe_topics(cluster: KafkaCluster, topics: Sequence[str]) -> dict[str, list[Any]]:
    """The configs of each topic, as `describe_configs`, by requests for TOPICS_AT_ONCE topics each."""
    found: dict[str, list[Any]] = {}
    for first in range(0, len(topics), TOPICS_AT_ONCE):
        some = [(TOPIC, topic) for topic in topics[first : first + TOPICS_AT_ONCE]]
        found |= {str(each.resource_name): list(each.configs) for each in _describe(cluster, some, (), ANY)}
    return found


def _describe(cluster: KafkaCluster, resources: Sequence[ResourceName], keys: Iterable[str], node_id: int) -> list[Any]:
    m = cluster.message(ApiKey.DESCRIBE_CONFIGS)
    wanted = tuple(
        m.make(
            "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=tuple(keys) or None
        )
        for kind, name in resources
    )
    has_documentation = len(resources) == 1
    request = m.request(resources=wanted, include_synonyms=True, include_documentation=has_documentation)
    results = list(cluster.ask(ApiKey.DESCRIBE_CONFIGS, request, node_id).results)
    for each in results:
        require(each.error_code, each.error_message, each.resource_name)
    return results


def shown(configs: Iterable[Any], only_own_of: int | None) -> list[Row]:
    """Return the configs as rows of a table; with a resource type, only values set for the resource itself."""
    return [
        {
            "config": config.name,
            "value": None if config.is_sensitive else config.value,
            "sensitive": bool(config.is_sensitive),
            "source": _source(config.config_source),
            "read_only": bool(config.read_only),
            "synonyms": [{"config": s.name, "value": s.value, "source": _source(s.source)} for s in config.synonyms],
            "meaning": getattr(config, "documentation", None),
        }
        for config in sorted(configs, key=lambda config: str(config.name))
        if only_own_of is None or config.config_source in _OWN[only_own_of]
    ]


def _source(number: int) -> str:
    return SOURCES.get(number, str(number))


def names_with_configs(cluster: KafkaCluster, kind: int) -> list[str] | None:
    """The groups (GROUP) or subscriptions (CLIENT_METRICS) that were given configs, sorted; None if the cluster does
    not list them: Kafka before 3.7, of groups before 4.1.
    """
    if not cluster.serves(ApiKey.LIST_CONFIG_RESOURCES):
        return None
    m = cluster.message(ApiKey.LIST_CONFIG_RESOURCES)
    if kind != CLIENT_METRICS and not m.version:
        return None
    answer = cluster.ask(ApiKey.LIST_CONFIG_RESOURCES, m.request(resource_types=(kind,)))
    require(answer.error_code)
    return sorted(str(each.resource_name) for each in answer.config_resources)


def change_configs(
    cluster: KafkaCluster,
    resource: ResourceName,
    changes: Sequence[Change],
    *,
    validate_only: bool = False,
) -> None:
    """(name, SET or DELETE, value) each. Errors as `require`."""
    m = cluster.message(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    configs = tuple(m.make("AlterableConfig", name=n, config_operation=op, value=v) for n, op, v in changes)
    wanted = m.make("AlterConfigsResource", resource_type=resource[0], resource_name=resource[1], configs=configs)
    request = m.request(resources=(wanted,), validate_only=validate_only)
    node_id = _whom_to_ask(cluster, resource)
    if node_id == ANY:
        cluster.nodes()
        node_id = cluster.controller
    (answer,) = cluster.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, node_id).responses
    require(answer.error_code, answer.error_message, resource[1])


def _resource(args: argparse.Namespace) -> ResourceName:
    named = ((TOPIC, args.topic), (BROKER, args.broker), (LOGGER, args.logger), (GROUP, args.group))
    found: ResourceName = next(((kind, name) for kind, name in named if name is not None), (BROKER, ""))
    if found[0] in (BROKER, LOGGER) and found[1] and not found[1].isdecimal():
        raise InvalidError(f"not a broker id: {found[1]}")
    return found


def _whom_to_ask(cluster: KafkaCluster, resource: ResourceName) -> int:
    """Only a broker itself can show and change its settings and log levels."""
    kind, name = resource
    if kind not in (BROKER, LOGGER) or not name:
        return ANY
    if int(name) not in cluster.nodes():
        raise InvalidError(f"broker does not exist: {name}")
    return int(name)
