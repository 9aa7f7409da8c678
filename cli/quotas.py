"""`headrace quotas`: list, describe, alter and delete the quotas of users, clients and addresses.

Place: a Kafka client for a running cluster; Kafka's kafka-configs.sh for users, clients and ips, with its words.
Invariant: an entity's quotas are changed completely or not at all. A command can be repeated safely.
"""

from __future__ import annotations

import argparse

from headrace.cli.client.quotas import (
    CLIENT_ID,
    IP,
    KEYS,
    USER,
    Entity,
    Limits,
    change_quotas,
    entity_of,
    list_quotas,
    shown_entity,
)
from headrace.cli.tables import Row, add_flags, add_yes, confirm, open_cluster, pairs, refuse_twice, say, show
from headrace.storage.errors import InvalidError, NotFoundError

DESCRIPTION = """\
Quotas of any running Kafka cluster: how much users, clients and addresses may use.

  headrace quotas list -b 127.0.0.1:9092
  headrace quotas alter --user billing --set producer_byte_rate=1048576 -b 127.0.0.1:9092
  headrace quotas describe --user billing -b 127.0.0.1:9092
  headrace quotas alter --client-id-default --set request_percentage=50 -b 127.0.0.1:9092
  headrace quotas delete --user billing --yes -b 127.0.0.1:9092
"""
COLUMNS = ("user", "client_id", "ip", "quota", "value")
DEFAULT = "<default>"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar="{list,describe,alter,delete}", required=True)
    listing = commands.add_parser("list", help="list all quotas")
    describing = commands.add_parser("describe", help="show the quotas of one entity")
    altering = commands.add_parser("alter", aliases=["create"], help="set or delete quotas of one entity")
    deleting = commands.add_parser("delete", help="delete all quotas of one entity")
    for command in (describing, altering, deleting):
        for kind in (USER, CLIENT_ID, IP):
            either = command.add_mutually_exclusive_group()
            either.add_argument(f"--{kind}", metavar="NAME")
            either.add_argument(
                f"--{kind}-default", action="store_true", help=f"every {kind} that has no separate quotas"
            )
    altering.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=", ".join(KEYS))
    altering.add_argument("--delete-config", action="append", default=[], metavar="KEY", help="delete one quota")
    altering.add_argument("--validate-only", action="store_true", help="check the change without applying it")
    add_yes(deleting)
    runs = (run_list, run_describe, run_alter, run_delete)
    for command, run in zip((listing, describing, altering, deleting), runs, strict=True):
        add_flags(command)
        command.set_defaults(run=run)


def run_list(args: argparse.Namespace) -> int:
    """One line per quota."""
    with open_cluster(args) as cluster:
        found = list_quotas(cluster)
    show(args, [row for entity, limits in found.items() for row in _rows(entity, limits)], COLUMNS)
    return 0


def run_describe(args: argparse.Namespace) -> int:
    """The same, of one entity; none is no error, as in Kafka's tool."""
    entity = _entity(args)
    with open_cluster(args) as cluster:
        found = list_quotas(cluster, entity)
    show(args, _rows(entity, found.get(entity, {})), COLUMNS)
    return 0


def run_alter(args: argparse.Namespace) -> int:
    """Set and delete quotas of the entity."""
    entity, limits = _entity(args), {key: _number(key, text) for key, text in pairs(args.set, "quota").items()}
    if not limits and not args.delete_config:
        raise InvalidError("nothing to alter: set --set or --delete-config")
    refuse_twice([*limits, *args.delete_config], "quota")
    with open_cluster(args) as cluster:
        cluster.look_again(
            lambda: change_quotas(cluster, entity, limits, args.delete_config, validate_only=args.validate_only)
        )
    outcome = "would be altered" if args.validate_only else "altered"
    say(args, f"quotas of {shown_entity(entity)} {outcome}", **_named(entity), outcome=outcome)
    return 0


def run_delete(args: argparse.Namespace) -> int:
    """Delete all quotas of the entity, after confirmation."""
    entity = _entity(args)
    with open_cluster(args) as cluster:
        limits = list_quotas(cluster, entity).get(entity, {})
        if not limits:
            raise NotFoundError(f"no quotas: {shown_entity(entity)}")
        confirm(args, f"delete {', '.join(limits)} of {shown_entity(entity)}?")
        cluster.look_again(lambda: change_quotas(cluster, entity, {}, list(limits)))
    say(args, f"quotas of {shown_entity(entity)} deleted", **_named(entity), outcome="deleted")
    return 0


def _entity(args: argparse.Namespace) -> Entity:
    names: dict[str, str | None] = {}
    for kind in (USER, CLIENT_ID, IP):
        field = kind.replace("-", "_")
        if getattr(args, f"{field}_default"):
            names[kind] = None
        elif (name := getattr(args, field)) is not None:
            names[kind] = name
    if not names:
        raise InvalidError("of whom? set --user, --client-id, --ip, or one of them with -default")
    if IP in names and len(names) > 1:
        raise InvalidError("--ip excludes --user and --client-id: quotas of an address apply to all its clients")
    return entity_of(names)


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidError(f"not a number: {key}={text}") from error


def _rows(entity: Entity, limits: Limits) -> list[Row]:
    return [{**_named(entity), "quota": key, "value": value} for key, value in sorted(limits.items())]


def _named(entity: Entity) -> dict[str, str | None]:
    names = {kind: DEFAULT if name is None else name for kind, name in entity}
    return {kind.replace("-", "_"): names.get(kind) for kind in (USER, CLIENT_ID, IP)}
