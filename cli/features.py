"""`headrace features`: describe the feature levels of a cluster, raise, lower or disable them.

Place: a Kafka client for a running cluster; Kafka's kafka-features.sh, with its words.
Invariant: an upgrade never lowers a level, and a downgrade needs confirmation. A command can be repeated safely.
Source: KIP-584, KIP-1022.
"""

from __future__ import annotations

import argparse

from headrace.cli.client.features import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    list_features,
    update_features,
)
from headrace.cli.options import INT16_MAX
from headrace.cli.tables import add_flags, add_yes, confirm, open_cluster, pairs, show
from headrace.protocol.client.cluster import KafkaCluster
from headrace.storage.errors import InvalidError

DESCRIPTION = """\
Features of any running Kafka cluster, and their levels.

  headrace features describe -b 127.0.0.1:9092
  headrace features upgrade --feature metadata.format=4 --dry-run -b 127.0.0.1:9092
"""
COLUMNS = ("feature", "supported_min_version", "supported_max_version", "finalized_version_level", "epoch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar="{describe,upgrade,downgrade,disable}", required=True)
    describing = commands.add_parser("describe", aliases=["list"], help="show supported levels, and those in use")
    upgrading = commands.add_parser("upgrade", aliases=["alter"], help="raise levels")
    downgrading = commands.add_parser("downgrade", help="lower levels")
    disabling = commands.add_parser("disable", aliases=["delete"], help="stop using features")
    for command in (upgrading, downgrading):
        command.add_argument("--feature", action="append", required=True, metavar="NAME=LEVEL")
    disabling.add_argument("--feature", action="append", required=True, metavar="NAME")
    for command in (upgrading, downgrading, disabling):
        command.add_argument(
            "--dry-run", "--validate-only", action="store_true", help="check the change without applying it"
        )
    for command in (downgrading, disabling):
        command.add_argument("--unsafe", action="store_true", help="also if metadata may be lost")
        add_yes(command)
    runs = (run_describe, run_upgrade, run_downgrade, run_disable)
    for command, run in zip((describing, upgrading, downgrading, disabling), runs, strict=True):
        add_flags(command)
        command.set_defaults(run=run)


def run_describe(args: argparse.Namespace) -> int:
    """One line per feature."""
    with open_cluster(args) as cluster:
        _show(args, cluster)
    return 0


def run_upgrade(args: argparse.Namespace) -> int:
    """Raise the levels."""
    return _change(args, _levels(args), UPGRADE)


def run_downgrade(args: argparse.Namespace) -> int:
    """Lower the levels, after confirmation."""
    levels = _levels(args)
    if not args.dry_run:
        confirm(args, f"lower {', '.join(f'{name} to {level}' for name, level in levels.items())}?")
    return _change(args, levels, UNSAFE_DOWNGRADE if args.unsafe else SAFE_DOWNGRADE)


def run_disable(args: argparse.Namespace) -> int:
    """Set the levels to 0, after confirmation."""
    if not args.dry_run:
        confirm(args, f"disable {', '.join(args.feature)}?")
    return _change(args, dict.fromkeys(args.feature, 0), UNSAFE_DOWNGRADE if args.unsafe else SAFE_DOWNGRADE)


def _change(args: argparse.Namespace, levels: dict[str, int], upgrade_type: int) -> int:
    with open_cluster(args) as cluster:
        _, known = list_features(cluster)
        used = {each.feature: each.level or 0 for each in known}
        due = {name: level for name, level in levels.items() if used.get(name, -1) != level}
        if due:
            cluster.look_again(lambda: update_features(cluster, due, upgrade_type, validate_only=args.dry_run))
    outcome = "would be set" if args.dry_run else "set"
    rows = [
        {"feature": name, "level": level, "outcome": outcome if name in due else "unchanged"}
        for name, level in levels.items()
    ]
    show(args, rows, ("feature", "level", "outcome"))
    return 0


def _levels(args: argparse.Namespace) -> dict[str, int]:
    found = {}
    for name, text in pairs(args.feature, "feature").items():
        if not text.isdecimal() or int(text) > INT16_MAX:
            raise InvalidError(f"not a level: {name}={text}")
        found[name] = int(text)
    return found


def _show(args: argparse.Namespace, cluster: KafkaCluster) -> None:
    epoch, found = list_features(cluster)
    rows = [dict(zip(COLUMNS, (*each, epoch), strict=True)) for each in found]
    show(args, rows, COLUMNS)
