"""`headrace acls`: list, create and delete ACLs.

Place: a Kafka client for a running cluster; Kafka's kafka-acls.sh, with its words.
Invariant: creating can be repeated. `delete` deletes what `list` shows for the same filter, after confirmation.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.cli.client.acls import (
    ANY,
    CLUSTER_NAME,
    EVERY_HOST,
    MATCH,
    OPERATIONS,
    PATTERNS,
    PERMISSIONS,
    RESOURCES,
    Acl,
    WantedAcls,
    create_acls,
    delete_acls,
    list_acls,
    shown_acl,
)
from headrace.cli.tables import add_flags, add_yes, confirm, open_cluster, show
from headrace.storage.errors import InvalidError

DESCRIPTION = """\
ACLs of any running Kafka cluster: who may do what.

  headrace acls create --allow-principal User:billing --producer --topic orders -b 127.0.0.1:9092
  headrace acls create --allow-principal User:billing --consumer --topic orders --group billing -b 127.0.0.1:9092
  headrace acls list --principal User:billing -b 127.0.0.1:9092
  headrace acls delete --principal User:billing --topic orders --yes -b 127.0.0.1:9092
"""
COLUMNS = Acl._fields
FILTER_PATTERNS = {**PATTERNS, "any": ANY, "match": MATCH}
_PRODUCER: Mapping[str, Sequence[str]] = {
    "topic": ("Write", "Describe", "Create"),
    "transactionalId": ("Write", "Describe"),
}
_CONSUMER: Mapping[str, Sequence[str]] = {"topic": ("Read", "Describe"), "group": ("Read",)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar="{list,create,delete}", required=True)
    listing = commands.add_parser("list", aliases=["describe"], help="list ACLs")
    creating = commands.add_parser("create", help="allow or deny operations")
    deleting = commands.add_parser("delete", help="delete the ACLs that match")
    for command, patterns, default in (
        (listing, FILTER_PATTERNS, "any"),
        (creating, PATTERNS, "literal"),
        (deleting, FILTER_PATTERNS, "literal"),
    ):
        _add_resources(command)
        command.add_argument(
            "--resource-pattern-type",
            type=_word(_kafkas_names(patterns)),
            default=default,
            metavar="TYPE",
            help=f"{', '.join(patterns)} ({default})",
        )
        command.add_argument("--operation", action="append", default=[], type=_word(_names(OPERATIONS)), metavar="NAME")
    for command in (listing, deleting):
        command.add_argument("--principal", action="append", default=[], metavar="User:NAME")
        command.add_argument("--host", metavar="ADDRESS")
        command.add_argument("--permission", type=_word(_names(PERMISSIONS)), metavar="TYPE", help="allow or deny")
    for permission in ("allow", "deny"):
        for what, shown in (("principal", "User:NAME"), ("host", "ADDRESS")):
            creating.add_argument(f"--{permission}-{what}", action="append", default=[], metavar=shown)
    creating.add_argument(
        "--producer", action="store_true", help="what a producer needs of --topic, --transactional-id"
    )
    creating.add_argument("--idempotent", action="store_true", help="with --producer: IdempotentWrite, for old brokers")
    creating.add_argument("--consumer", action="store_true", help="what a consumer needs of --topic and --group")
    add_yes(deleting)
    for command, run in ((listing, run_list), (creating, run_create), (deleting, run_delete)):
        add_flags(command)
        command.set_defaults(run=run)


def _add_resources(command: argparse.ArgumentParser) -> None:
    for flag in ("topic", "group", "transactional-id", "delegation-token", "user-principal"):
        command.add_argument(
            f"--{flag}", action="append", default=[], metavar="NAME", help="* is any" if flag == "topic" else None
        )
    command.add_argument("--cluster", action="store_true", help="the cluster itself")


def run_list(args: argparse.Namespace) -> int:
    """One line per ACL."""
    with open_cluster(args) as cluster:
        found = {acl for wanted in _filters(args) for acl in list_acls(cluster, wanted)}
    _show(args, found)
    return 0


def run_create(args: argparse.Namespace) -> int:
    """Create the ACLs, and list them."""
    acls = _wanted(args)
    with open_cluster(args) as cluster:
        cluster.look_again(lambda: create_acls(cluster, acls))
    _show(args, acls)
    return 0


def run_delete(args: argparse.Namespace) -> int:
    """Delete the ACLs, after confirmation, and list them."""
    filters = _filters(args)
    if filters == [WantedAcls(pattern=PATTERNS["literal"])]:
        raise InvalidError("which ACLs? set --topic, --principal or another filter")
    with open_cluster(args) as cluster:
        found = sorted({acl for wanted in filters for acl in list_acls(cluster, wanted)})
        if found:
            confirm(args, f"delete {len(found)} ACLs? {'; '.join(map(shown_acl, found))}")
            found = cluster.look_again(lambda: delete_acls(cluster, [WantedAcls.of(acl) for acl in found]))
    _show(args, found)
    return 0


def _resources(args: argparse.Namespace) -> list[tuple[str, str]]:
    flags = {
        "topic": args.topic,
        "group": args.group,
        "transactionalId": args.transactional_id,
        "delegationToken": args.delegation_token,
        "user": args.user_principal,
    }
    named = [(kind, name) for kind, names in flags.items() for name in names]
    return named + ([("cluster", CLUSTER_NAME)] if args.cluster else [])


def _filters(args: argparse.Namespace) -> list[WantedAcls]:
    pattern = FILTER_PATTERNS[args.resource_pattern_type]
    named: list[tuple[int, str | None]] = [(RESOURCES[kind], name) for kind, name in _resources(args)]
    operations = [OPERATIONS[each] for each in args.operation] or [ANY]
    permission = PERMISSIONS[args.permission] if args.permission else ANY
    return [
        WantedAcls(kind, name, pattern, principal, args.host, operation, permission)
        for (kind, name), principal, operation in itertools.product(
            named or [(ANY, None)], args.principal or [None], operations
        )
    ]


def _wanted(args: argparse.Namespace) -> list[Acl]:
    principals = {"allow": args.allow_principal, "deny": args.deny_principal}
    hosts = {"allow": args.allow_host, "deny": args.deny_host}
    if not any(principals.values()):
        raise InvalidError("for whom? set --allow-principal or --deny-principal")
    if (args.producer or args.consumer) and principals["deny"]:
        raise InvalidError("--producer and --consumer allow: use --allow-principal")
    resources = _resources(args)
    operations = _operations(args, resources)
    return sorted(
        Acl(kind, name, args.resource_pattern_type, principal, host, operation, permission)
        for permission, named in principals.items()
        for principal in named
        for host in hosts[permission] or [EVERY_HOST]
        for kind, name, operation in operations
    )


def _operations(args: argparse.Namespace, resources: Sequence[tuple[str, str]]) -> set[tuple[str, str, str]]:
    """Return (resource type, name, operation) of each ACL. InvalidError if a resource gets none."""
    roles = [_PRODUCER] * args.producer + [_CONSUMER] * args.consumer
    if args.consumer and not (args.topic and args.group):
        raise InvalidError("--consumer needs --topic and --group")
    if args.producer and not args.topic:
        raise InvalidError("--producer needs --topic")
    if not resources:
        raise InvalidError("on what? set --topic, --group, --cluster or another resource")
    explicit = args.operation or ([] if roles else ["All"])
    found = {
        (kind, name, operation)
        for kind, name in resources
        for operation in (*explicit, *(each for role in roles for each in role.get(kind, ())))
    }
    if args.idempotent:
        found.add(("cluster", CLUSTER_NAME, "IdempotentWrite"))
    return found


def _names(words: Iterable[str]) -> dict[str, str]:
    return {word: word for word in words}


def _kafkas_names(words: Iterable[str]) -> dict[str, str]:
    """Kafka's tool says `prefixed`, and Strimzi's documents `prefix`."""
    return {**_names(words), "prefixed": "prefix"}


def _word(known: Mapping[str, str]) -> Callable[[str], str]:
    """Return a parser for argparse's `type`: one of the words, in upper or lower case, as in Kafka's tool."""

    def word(text: str) -> str:
        for name, meant in known.items():
            if name.lower() == text.lower().replace("_", ""):
                return meant
        raise argparse.ArgumentTypeError(f"not one of {', '.join(known)}: {text}")

    return word


def _show(args: argparse.Namespace, acls: Iterable[Acl]) -> None:
    show(args, [acl._asdict() for acl in sorted(acls)], COLUMNS)
