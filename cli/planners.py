"""`headrace planners`: let database roles plan scans, and nothing else.

Place: run by an administrator, with the account that owns the metastore's tables; metastore/postgres/planners.py.
Invariant: it can be repeated, and is to be after each `headrace migrate` of a new version.
"""

from __future__ import annotations

import argparse

from headrace.cli.options import add_settings, settings_from
from headrace.cli.output import write
from headrace.config.errors import ConfigError
from headrace.metastore.postgres.password import url_with_password
from headrace.metastore.postgres.planners import SCHEMA, grant_planning

DESCRIPTION = """\
Let roles of Postgres plan scans (Spark's source `headrace`, `headrace export`): find topics, offsets and files, and
take read pins. They can read no table and commit nothing. Roles that were named before and are not now lose it.

  psql … -c "CREATE ROLE spark LOGIN PASSWORD '…'"
  headrace planners --role spark --metastore-url postgresql://headrace@db/headrace

Repeat it after each upgrade (`headrace migrate`). The bucket's keys still give access to every topic's records.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--role", action="append", required=True, help="a role that exists; can be repeated")
    add_settings(parser, ("metastore.url",), every=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Grant, and print what was done."""
    settings = settings_from(args)
    if not settings.metastore_url:
        raise ConfigError("metastore.url is not set (--metastore-url)")
    grant_planning(url_with_password(settings), args.role)
    write(f"roles may plan scans: roles={','.join(args.role)} schema={SCHEMA}")
    return 0
