"""`headrace storage`: info, format, random-uuid; Kafka's kafka-storage.sh for a metastore and a bucket. And
adopt-bucket, rotate-zone-secret, seal-secrets, grow-commit-shards.

Place: before the first agent of a cluster starts; agents refuse storage that is not formatted.
Invariant: formatting never replaces anything: a part that belongs to a cluster keeps its id, and a metastore keeps its
bucket. If the command is interrupted, one part may be formatted and the other not; `info` shows it, and the same
command with --ignore-formatted completes it. A bucket that lacks the files of a metastore is never formatted for it.
Source: KIP-631, kafka-storage.sh.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.cli.adopt_bucket import add_adopt_bucket
from headrace.cli.commit_shards import grow_commit_shards
from headrace.cli.current_metastore import open_current
from headrace.cli.first_users import add_users, parse_user
from headrace.cli.options import S3, add_settings, settings_from
from headrace.cli.output import write
from headrace.cli.sealed_secrets import seal_secrets
from headrace.config.cluster_values import proposed
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.api.zone_secret import Rotation
from headrace.metastore.life.own_bucket import claim_bucket, most_missing, other_bucket
from headrace.metastore.postgres.formatted import FormattedCluster, formatted_cluster, sampled_files
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.password import url_with_password
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.bucket_properties import bucket_address
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import check_cluster_id, random_cluster_id, read_cluster_id, write_cluster_id
from headrace.storage.errors import AlreadyExistsError, InvalidError
from headrace.storage.file_id import object_key
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.store import ObjectStore

SHOWN = ("metastore.url", "bucket", *S3)
AFTER_ROTATION = {
    "added": "Restart all agents, one after another: they accept the new secret too. Then repeat the command.",
    "switched": "Restart all agents: they use the new secret, and accept the old one. Then repeat the command.",
    "done": "Restart all agents: they accept the new secret only.",
}
DESCRIPTION = """\
Format a metastore and a bucket for one cluster, once, before its first agent starts; or show their cluster.
With -c, the cluster gets the file's values of the settings that have one value in the cluster.

  headrace storage format -t $(headrace storage random-uuid) \\
      --metastore-url postgresql://headrace@db/headrace --bucket s3://logs/headrace
  headrace storage info --metastore-url postgresql://headrace@db/headrace --bucket s3://logs/headrace
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    info = commands.add_parser("info", help="show the cluster of metastore and bucket")
    add_settings(info, SHOWN, every=False)
    info.set_defaults(run=run_info)
    making = commands.add_parser("format", help="format metastore and bucket for one cluster, before agents start")
    making.add_argument("--cluster-id", "-t", required=True, metavar="CLUSTER_ID", help="the cluster id to use")
    making.add_argument(
        "--ignore-formatted", "-g", action="store_true", help="skip a part that is formatted instead of failing"
    )
    making.add_argument(
        "--add-scram",
        "-S",
        action="append",
        default=[],
        metavar="SCRAM-SHA-512=[name=USER,password-file=PATH]",
        help="a user of the new cluster; may be repeated",
    )
    add_settings(making, (*SHOWN, "commit.shards"), every=False)
    making.set_defaults(run=run_format)
    drawing = commands.add_parser("random-uuid", help="print a random cluster id")
    drawing.set_defaults(run=run_random_uuid)
    add_adopt_bucket(commands)
    rotating = commands.add_parser(
        "rotate-zone-secret", help="take the next step of replacing the secret between agents"
    )
    add_settings(rotating, ("metastore.url",), every=False)
    rotating.set_defaults(run=run_rotate)
    sealing = commands.add_parser("seal-secrets", help="seal the metastore's secrets under metadata.secret.keys")
    add_settings(sealing, ("metastore.url",), every=False)
    sealing.set_defaults(run=run_seal)
    growing = commands.add_parser("grow-commit-shards", help="give a running cluster more commit shards")
    growing.add_argument(
        "--to", type=int, required=True, metavar="COUNT", help="the count that there is, doubled once or more"
    )
    add_settings(growing, ("metastore.url",), every=False)
    growing.set_defaults(run=run_grow)


@dataclass(frozen=True, slots=True)
class StoragePart:
    """One of the two places that store the cluster id; `cluster_id` is None if it is not formatted."""

    name: str
    address: str
    cluster_id: str | None
    cluster: FormattedCluster | None = None
    """The row of a metastore that is formatted."""


def run_info(args: argparse.Namespace) -> int:
    """Print what is there; 1 if a part is not formatted or the parts have different ids."""
    parts = asyncio.run(look(_complete(settings_from(args))))
    for part in parts:
        write(f"Found {part.name}:\n  {part.address}\n")
        write(
            f"Found metadata: MetaProperties(clusterId={part.cluster_id})\n" if part.cluster_id else "Not formatted.\n"
        )
    write("\n".join(problems := _problems(*parts)) or "Metastore and bucket belong to one cluster.")
    return 1 if problems else 0


def run_format(args: argparse.Namespace) -> int:
    """Format the parts that are not formatted; errors as `format_storage`."""
    settings = _complete(settings_from(args))
    users = [parse_user(text) for text in args.add_scram]
    lines = asyncio.run(
        format_storage(
            settings,
            args.cluster_id,
            ignore_formatted=args.ignore_formatted,
            with_values=args.config is not None,
        )
    )
    if settings.metadata_secret_keys:
        lines += asyncio.run(seal_secrets(settings))
    if users:
        lines += asyncio.run(add_users(settings, users))
    for line in lines:
        write(line)
    return 0


def run_rotate(args: argparse.Namespace) -> int:
    """Take the next step and print what comes after it; 1 if agents have to restart first."""
    rotation = asyncio.run(_rotate(_with_metastore(settings_from(args))))
    if rotation.waits_for:
        nodes = ", ".join(map(str, rotation.waits_for))
        write(f"not yet: restart these agents first, they may not know the last step: {nodes}")
        return 1
    write(f"zone secret: {rotation.step}. {AFTER_ROTATION[rotation.step]}")
    return 0


def run_seal(args: argparse.Namespace) -> int:
    """Seal what is in clear, or under another key than the first, and print what was done."""
    for line in asyncio.run(seal_secrets(_with_metastore(settings_from(args)))):
        write(line)
    return 0


def run_grow(args: argparse.Namespace) -> int:
    """Print the count before and after."""
    write(asyncio.run(grow_commit_shards(_with_metastore(settings_from(args)), args.to)))
    return 0


async def _rotate(settings: Settings) -> Rotation:
    async with open_current(settings) as metastore:
        return await metastore.cluster.rotate_zone_secret()


def run_random_uuid(args: argparse.Namespace) -> int:
    """Print a random cluster id."""
    write(random_cluster_id(random.SystemRandom()))
    return 0


async def look(settings: Settings) -> tuple[StoragePart, StoragePart]:
    """The current state of metastore and bucket."""
    cluster = await asyncio.to_thread(formatted_cluster, url_with_password(settings))
    in_metastore = None if cluster is None else cluster.cluster_id
    store = _open(settings)
    try:
        in_bucket = await read_cluster_id(store)
    finally:
        await store.close()
    return (
        StoragePart("metastore", _without_password(settings.metastore_url), in_metastore, cluster),
        StoragePart("bucket", settings.bucket, in_bucket),
    )


async def format_storage(
    settings: Settings, cluster_id: str, *, ignore_formatted: bool, with_values: bool = False
) -> list[str]:
    """Format metastore and bucket for the cluster; returns one line per part.

    `with_values`: a new cluster gets these settings as the cluster's values.

    AlreadyExistsError if a part is formatted and not ignored, InvalidError if it belongs to another cluster, or the
    metastore to another bucket; in all cases nothing is changed.
    """
    check_cluster_id(cluster_id)
    parts = await look(settings)
    for part in parts:
        if part.cluster_id not in (None, cluster_id):
            raise InvalidError(
                f"{part.name} belongs to another cluster: wanted={cluster_id} found={part.cluster_id} at={part.address}"
            )
        if part.cluster_id is not None and not ignore_formatted:
            raise AlreadyExistsError(
                f"{part.name} is already formatted: at={part.address} (--ignore-formatted skips what is formatted)"
            )
    if parts[0].cluster is not None and (refusal := await _why_another_bucket(settings, parts[0].cluster, parts[1])):
        raise InvalidError(refusal)
    await asyncio.to_thread(
        migrate,
        url_with_password(settings),
        commit_shards=settings.commit_shards,
        cluster_id=cluster_id,
        values=proposed(settings) if with_values else {},
    )
    await format_bucket(settings, cluster_id)
    return [f"{'Formatting' if part.cluster_id is None else 'Skipping'} {part.name} {part.address}" for part in parts]


async def _why_another_bucket(settings: Settings, cluster: FormattedCluster, bucket: StoragePart) -> str | None:
    """Return why this bucket may not become the one of a metastore that is formatted already; None if it may."""
    address, known = bucket_address(settings.bucket), cluster.bucket
    if known is not None and known.address != address:
        return other_bucket(known, address)
    if bucket.cluster_id is not None:
        return None
    store, url = _open(settings), url_with_password(settings)

    async def sample(oldest: int, newest: int) -> Sequence[uuid.UUID]:
        return await asyncio.to_thread(sampled_files, url, oldest, newest)

    try:
        missing = await most_missing(sample, store)
    finally:
        await store.close()
    if missing:
        return (
            f"the bucket lacks files that the metastore names, as {object_key(missing[0])}: is it mounted? correct"
            f" bucket; nothing was changed: bucket={address}"
        )
    if known is None and cluster.has_agents and not await sample(1, 0):
        return (
            "the metastore is in use, and does not know its bucket yet: correct bucket, or start an agent of this"
            f" version with the right one, which records it; nothing was changed: bucket={address}"
        )
    return None


async def format_bucket(settings: Settings, cluster_id: str) -> None:
    """Format only the bucket, as the metastore's. AlreadyExistsError if it belongs to another cluster; errors as
    `claim_bucket`."""
    store = _open(settings)
    try:
        metastore = await PostgresMetastore.open(
            settings.metastore_url, msgspec.structs.replace(settings, metastore_pool_size=1)
        )
        try:
            await claim_bucket(metastore.life, store, settings.bucket, random.SystemRandom())
        finally:
            await metastore.close()
        await write_cluster_id(store, cluster_id)
    finally:
        await store.close()


def _open(settings: Settings) -> ObjectStore:
    return open_store(settings.bucket, StoreOptions.of(settings), clock=SystemClock(), rng=random.Random())


def _with_metastore(settings: Settings) -> Settings:
    if not settings.metastore_url:
        raise ConfigError("metastore.url is not set (--metastore-url)")
    return settings


def _complete(settings: Settings) -> Settings:
    for name, value in (("metastore.url", settings.metastore_url), ("bucket", settings.bucket)):
        if not value:
            raise ConfigError(f"{name} is not set (--{name.replace('.', '-')} or --config)")
    return settings


def _problems(metastore: StoragePart, bucket: StoragePart) -> list[str]:
    known = None if metastore.cluster is None else metastore.cluster.bucket
    if known is not None and known.address != bucket_address(bucket.address):
        return [f"The metastore has its files in another bucket: {known.address}: agents will not start."]
    parts = (metastore, bucket)
    bare = [f"Not formatted: {part.name}: run `headrace storage format`." for part in parts if part.cluster_id is None]
    ids = {part.cluster_id for part in parts if part.cluster_id is not None}
    return bare + (["The parts belong to different clusters: agents will not start."] if len(ids) > 1 else [])


def _without_password(url: str) -> str:
    """The address without user and password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if rest else "(a connection string)"
