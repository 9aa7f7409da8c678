"""`headrace backup`: take a dump of Postgres, or record a backup that another tool took.

Place: run by a timer (systemd, CronJob) on a machine that reaches Postgres and bucket; `headrace doctor` and the active
controller read the record.
Invariant: the time that is recorded is before the backup began, and is recorded only after it was complete. Nothing of
Postgres is changed. Passwords are given to pg_dump by a file of this user, never as an argument or in the environment,
and only this user can read the dump.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.cli.options import STORE, add_settings, settings_from
from headrace.cli.output import write
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.backups import BackupKind, BackupRecord, read_backup, record_backup
from headrace.metastore.life.own_bucket import other_bucket
from headrace.metastore.postgres.address import parsed, url_with_password
from headrace.metastore.postgres.formatted import formatted_cluster
from headrace.storage.bucket_properties import bucket_address
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import read_cluster_id
from headrace.storage.errors import InvalidError, UnavailableError
from headrace.storage.objects.open import StoreOptions, open_store

SECRET_PARAMETERS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
"""What other users of the machine must not see of an address: arguments are public."""
DESCRIPTION = """\
Take a dump of Postgres with pg_dump and record in the bucket when it began; or record a backup that
another tool took: a base backup with a WAL archive (base), or a snapshot. headrace doctor and the alert
HeadraceBackupOverdue compare its age with file.delete.delay.ms (docs/operate/BACKUPS.md).

  headrace backup -c headrace.properties --to /backups/headrace.dump
  headrace backup -c headrace.properties --record snapshot --began 2026-11-27T03:00:00Z
  headrace backup -c headrace.properties                          which one is the newest
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--to", type=Path, metavar="FILE", help="take a dump in pg_dump's custom format")
    what.add_argument("--record", choices=[str(kind) for kind in BackupKind], help="a backup of this kind was taken")
    parser.add_argument("--began", metavar="TIME", help="when it began, in ISO 8601 with a zone (now)")
    parser.add_argument("--place", default="", metavar="TEXT", help="where it is, for people")
    add_settings(parser, ("metastore.url", "bucket", *STORE), every=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0, or 1 if no backup is recorded."""
    settings = settings_from(args)
    if not settings.bucket:
        raise ConfigError("bucket is not set (--bucket or --config): the record is there")
    if args.began and not args.record:
        raise ConfigError("--began needs --record")
    if args.to is not None:
        asyncio.run(_require_the_metastore(settings))
        record = _dumped(settings, args.to, args.place)
    elif args.record:
        asyncio.run(_cluster_of_the_bucket(settings))
        record = BackupRecord(BackupKind(args.record), _began_ms(args.began), args.place)
    else:
        return _show(asyncio.run(_read(settings)))
    if not asyncio.run(_record(settings, record)):
        write("a newer backup is recorded already; nothing was changed")
        return 0
    return _show(record)


def _began_ms(text: str | None) -> int:
    if text is None:
        return SystemClock().wall_ms()
    try:
        began = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--began: {error}") from error
    if began.tzinfo is None:
        raise ConfigError(f"--began: no zone: {text} (append Z for UTC)")
    return int(began.timestamp() * 1000)


async def _require_the_metastore(settings: Settings) -> None:
    """InvalidError if the dump would be of another database than the bucket's metastore; of its standby is right."""
    if not settings.metastore_url:
        raise ConfigError("metastore.url is not set (--metastore-url or --config)")
    in_bucket = await _cluster_of_the_bucket(settings)
    try:
        cluster = await asyncio.to_thread(formatted_cluster, url_with_password(settings))
    except UnavailableError:
        return  # pg_dump cannot reach it either, and says why
    if cluster is not None and cluster.bucket is not None and cluster.bucket.address != bucket_address(settings.bucket):
        raise InvalidError(other_bucket(cluster.bucket, bucket_address(settings.bucket)))
    if cluster is None or cluster.is_copy or cluster.cluster_id != in_bucket:
        found = None if cluster is None else cluster.cluster_id
        what = "a copy of the metastore" if cluster is not None and cluster.is_copy else "not the bucket's metastore"
        raise InvalidError(
            f"this database is {what}: cluster id={found} in the bucket={in_bucket}: correct metastore.url or bucket;"
            " nothing was dumped or recorded"
        )


async def _cluster_of_the_bucket(settings: Settings) -> str:
    """The cluster id of the bucket. InvalidError if it has none: no process reads a record there."""
    store = open_store(settings.bucket, StoreOptions.of(settings), clock=SystemClock(), rng=random.Random())
    try:
        found = await read_cluster_id(store)
    finally:
        await store.close()
    if found is None:
        raise InvalidError(f"bucket is not formatted: correct bucket; nothing was recorded: bucket={settings.bucket}")
    return found


def _dumped(settings: Settings, file: Path, place: str) -> BackupRecord:
    """Take a dump: under another name until it is complete."""
    program = shutil.which("pg_dump")
    if program is None:
        raise ConfigError("pg_dump is not in PATH: install Postgres' client programs, of the server's version or newer")
    began_ms, half = SystemClock().wall_ms(), file.with_name(f"{file.name}.part")
    half.unlink(missing_ok=True)
    os.close(os.open(half, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with _address_of(settings) as (address, environment):
        command = [program, "--format=custom", "--no-owner", "--file", str(half), "--dbname", address]
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        half.unlink(missing_ok=True)
        raise UnavailableError(f"pg_dump failed: {' '.join(done.stderr.split())}")
    if not half.stat().st_size:
        raise InvalidError(f"pg_dump wrote nothing: file={half}")
    half.replace(file)
    return BackupRecord(BackupKind.DUMP, began_ms, place or str(file.absolute()))


@contextmanager
def _address_of(settings: Settings) -> Iterator[tuple[str, dict[str, str]]]:
    """The metastore's address without secrets, and the environment in which libpq finds them: in a service file."""
    parts = parsed(url_with_password(settings))
    secrets = {name: str(parts.pop(name)) for name in SECRET_PARAMETERS if name in parts}
    if secrets and "service" in parts:
        raise ConfigError(f"metastore.url has a service and {', '.join(secrets)}: write these into the service's file")
    with TemporaryDirectory(prefix="headrace-backup-") as folder:  # of mode 0700
        environment = dict(os.environ)
        if secrets:
            file = Path(folder) / "service"
            file.write_text("[headrace]\n" + "".join(f"{name}={value}\n" for name, value in secrets.items()))
            file.chmod(0o600)
            parts["service"], environment["PGSERVICEFILE"] = "headrace", str(file)
        address = " ".join(f"{name}={_quoted(str(value))}" for name, value in parts.items())
        yield address, environment


def _quoted(value: str) -> str:
    """Return the text as libpq reads a value of an address."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _show(record: BackupRecord | None) -> int:
    if record is None:
        write("no backup is recorded")
        return 1
    began = datetime.fromtimestamp(record.began_ms / 1000, UTC).isoformat(timespec="seconds")
    write(f"newest backup: kind={record.kind} began={began} place={record.place or 'unknown'}")
    return 0


async def _record(settings: Settings, record: BackupRecord) -> bool:
    store = open_store(settings.bucket, StoreOptions.of(settings), clock=SystemClock(), rng=random.Random())
    try:
        return await record_backup(store, record)
    finally:
        await store.close()


async def _read(settings: Settings) -> BackupRecord | None:
    store = open_store(settings.bucket, StoreOptions.of(settings), clock=SystemClock(), rng=random.Random())
    try:
        return await read_backup(store)
    finally:
        await store.close()
