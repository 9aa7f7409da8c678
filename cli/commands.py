"""The subcommands of `headrace`: name, the line in the overview, and the module that is imported when one is used.

Place: the table that cli/main.py makes its parser from.
Invariant: importing this module imports no command, so `headrace --help` costs no more than argparse.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import NamedTuple, Protocol, cast


class CommandModule(Protocol):
    """The interface of a command's module."""

    DESCRIPTION: str
    """The command's `--help` text, with an example."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add flags and subcommands; set `run`, which takes the parsed arguments and returns the exit status."""


class Command(NamedTuple):
    """One subcommand."""

    name: str
    module: str
    help: str

    def load(self) -> CommandModule:
        """Import the command's module and everything it uses."""
        return cast(CommandModule, import_module(self.module))


COMMANDS = (
    Command("dev", "headrace.cli.dev", "run everything on this machine, nothing to install first"),
    Command("agent", "headrace.cli.agent", "run one agent"),
    Command("compactor", "headrace.cli.compactor", "run background work: compaction, retention, deletion"),
    Command("storage", "headrace.cli.storage", "format metastore and bucket, or show their cluster"),
    Command("migrate", "headrace.cli.migrate", "create or upgrade the metastore"),
    Command("postgres", "headrace.cli.postgres.command", "roles, database and standbys of Postgres, as commands"),
    Command("planners", "headrace.cli.planners", "let database roles plan scans, and nothing else"),
    Command("doctor", "headrace.cli.doctor.command", "look at everything a cluster depends on, and say what to change"),
    Command("backup", "headrace.cli.backup", "take or record a backup of Postgres"),
    Command("audit", "headrace.cli.audit", "compare the bucket with the metastore"),
    Command("damage", "headrace.cli.damage.command", "list damaged records, repair them, or go past them"),
    Command("topics", "headrace.cli.topics", "list, describe, create, alter or delete topics"),
    Command("partitions", "headrace.cli.partitions.command", "check a partition that fails or is behind"),
    Command("groups", "headrace.cli.groups", "list, describe, reset or delete consumer groups"),
    Command("configs", "headrace.cli.configs", "describe, set or delete configs"),
    Command("users", "headrace.cli.users", "list, create, alter or delete users with passwords"),
    Command("acls", "headrace.cli.acls", "list, create or delete ACLs"),
    Command("quotas", "headrace.cli.quotas", "list, set or delete quotas"),
    Command("clients", "headrace.cli.clients", "show which users and client ids send and get most"),
    Command("features", "headrace.cli.features", "show, raise or lower feature levels"),
    Command("transactions", "headrace.cli.transactions", "list, describe or abort transactions; find hanging ones"),
    Command("records", "headrace.cli.records", "produce, consume and delete records; show offsets"),
    Command("cluster", "headrace.cli.cluster", "show the id of a running cluster, or unregister an agent"),
    Command("console", "headrace.cli.console.command", "show a running cluster in a browser"),
    Command("top", "headrace.cli.top.command", "show a running cluster on one screen of the terminal"),
    Command("segments", "headrace.cli.segments", "list remote segments, and what happened to them"),
    Command("export", "headrace.cli.export", "write a topic's records to Parquet files"),
    Command("tables", "headrace.cli.topic_tables", "keep topics as Iceberg tables"),
    Command("dump-log", "headrace.cli.dump_log", "print the metadata log, a snapshot or segment files"),
    Command("shell", "headrace.cli.shell.command", "browse the cluster's metadata"),
    Command(
        "bench", "headrace.cli.bench.command", "measure throughput, latency and cost, also of two systems in turns"
    ),
    Command("cost", "headrace.cli.cost.command", "what a workload needs, and what it costs next to Kafka"),
    Command("completion", "headrace.cli.completion", "print the script for tab completion in bash or zsh"),
    Command("version", "headrace.cli.version", "print the version"),
)
"""Commands in the order of the overview."""
