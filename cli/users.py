"""`headrace users`: users with passwords (SCRAM): list, describe, create, alter and delete them.

Place: a Kafka client for a running cluster; Kafka's kafka-configs.sh --entity-type users.
Invariant: `create` never replaces a password, and `alter` never creates a user. A password is read from a file or the
terminal, never from an argument.
Source: KIP-554.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterable

from headrace.cli.client.users import (
    ITERATIONS,
    ITERATIONS_DEFAULT,
    MECHANISMS,
    Credential,
    delete_credential,
    list_users,
    set_password,
)
from headrace.cli.options import whole
from headrace.cli.passwords import add_password_file, password_of
from headrace.cli.tables import add_flags, add_yes, confirm, do_each, open_cluster, say, show
from headrace.protocol.client.cluster import KafkaCluster
from headrace.storage.errors import InvalidError, NotFoundError

DESCRIPTION = """\
Users with passwords (SCRAM) of any running Kafka cluster.

  headrace users list -b 127.0.0.1:9092
  openssl rand -hex 24 | headrace users create billing --password-file - -b 127.0.0.1:9092
  headrace users alter billing --password-file secrets/billing -b 127.0.0.1:9092
  headrace users delete billing --yes -b 127.0.0.1:9092
"""
ACTIONS = "{list,describe,create,alter,delete}"
DEFAULT_MECHANISM = "SCRAM-SHA-512"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar=ACTIONS, required=True)
    listing = commands.add_parser("list", help="list all users and their mechanisms")
    describing = commands.add_parser("describe", help="show the mechanisms of users")
    creating = commands.add_parser("create", help="create a user, or a further mechanism of one")
    altering = commands.add_parser("alter", help="set a new password")
    deleting = commands.add_parser("delete", help="delete users, or one mechanism of theirs")
    for command in (describing, deleting):
        command.add_argument("user", nargs="+")
    for command in (creating, altering):
        command.add_argument("user")
        command.add_argument("--mechanism", choices=list(MECHANISMS), default=DEFAULT_MECHANISM, help=DEFAULT_MECHANISM)
        command.add_argument(
            "--iterations",
            type=whole(*ITERATIONS),
            default=ITERATIONS_DEFAULT,
            metavar="N",
            help=f"hash iterations ({ITERATIONS_DEFAULT})",
        )
        add_password_file(command)
    creating.add_argument("--if-not-exists", action="store_true", help="do nothing if the user has this mechanism")
    deleting.add_argument("--mechanism", choices=list(MECHANISMS), help="default: all")
    add_yes(deleting)
    runs = (run_list, run_describe, run_create, run_alter, run_delete)
    for command, run in zip((listing, describing, creating, altering, deleting), runs, strict=True):
        add_flags(command)
        command.set_defaults(run=run)


def run_list(args: argparse.Namespace) -> int:
    """One line per user and mechanism."""
    with open_cluster(args) as cluster:
        _show(args, list_users(cluster))
    return 0


def run_describe(args: argparse.Namespace) -> int:
    """The same, of some users; InvalidError names one without credentials."""
    with open_cluster(args) as cluster:
        _show(args, list_users(cluster, args.user))
    return 0


def run_create(args: argparse.Namespace) -> int:
    """Create the credential."""
    with open_cluster(args) as cluster:
        if args.mechanism in _mechanisms(cluster, args.user):
            if not args.if_not_exists:
                raise InvalidError(f"user {args.user} exists with {args.mechanism}: `alter` sets another password")
            say(args, f"user {args.user} exists", user=args.user, mechanism=args.mechanism, outcome="exists")
            return 0
        _set(args, cluster)
    say(args, f"user {args.user} created", user=args.user, mechanism=args.mechanism, outcome="created")
    return 0


def run_alter(args: argparse.Namespace) -> int:
    """Replace the credential."""
    with open_cluster(args) as cluster:
        if args.mechanism not in _mechanisms(cluster, args.user):
            raise NotFoundError(f"user {args.user} has no {args.mechanism}: `create` adds it")
        _set(args, cluster)
    say(args, f"user {args.user} altered", user=args.user, mechanism=args.mechanism, outcome="altered")
    return 0


def run_delete(args: argparse.Namespace) -> int:
    """Delete the credentials, after confirmation."""
    what = args.mechanism or "all their passwords"
    confirm(args, f"delete {', '.join(args.user)} ({what})? Their open connections stay until they end")
    with open_cluster(args) as cluster:
        return do_each(
            args, "user", dict.fromkeys(args.user), "deleted", lambda user: _delete(cluster, user, args.mechanism)
        )


def _set(args: argparse.Namespace, cluster: KafkaCluster) -> None:
    password = password_of(args, args.user)
    credential = Credential(args.user, args.mechanism, args.iterations)
    cluster.look_again(lambda: set_password(cluster, credential, password, secrets.token_bytes))


def _mechanisms(cluster: KafkaCluster, user: str) -> set[str]:
    return {each.mechanism for each in list_users(cluster) if each.user == user}


def _delete(cluster: KafkaCluster, user: str, mechanism: str | None) -> None:
    found = _mechanisms(cluster, user) & ({mechanism} if mechanism else MECHANISMS.keys())
    if not found:
        raise NotFoundError(f"user {user} has no {mechanism or 'SCRAM credentials'}")
    for each in sorted(found):
        cluster.look_again(lambda each=each: delete_credential(cluster, user, each))  # type: ignore[misc]


def _show(args: argparse.Namespace, found: Iterable[Credential]) -> None:
    show(args, [each._asdict() for each in found], ("user", "mechanism", "iterations"))
