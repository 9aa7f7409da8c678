"""`headrace storage`: info, format, random-uuid, with the changes of cli/metastore_changes.py.

Place: before the first agent of a cluster starts; agents refuse storage that is not formatted. Kafka's
kafka-storage.sh for a metastore and a bucket. `format --add-scram` writes the users that a new cluster has before
its first agent starts; later users are added with kafka-configs.
Invariant of the first users: a user that exists is never changed, so that a repeated command adds the missing ones
only. Passwords are read from files, because every user of the machine sees the arguments of a command.
Source: Kafka's kafka-storage.sh --add-scram.
Invariant: formatting never replaces anything: a part that belongs to a cluster keeps its id, and a metastore keeps
its bucket. If the command is interrupted, one part may be formatted and the other not; `info` shows it, and the same
command with --ignore-formatted completes it. A bucket that lacks the files of a metastore is never formatted for it.
Source: KIP-631, kafka-storage.sh.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import re
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.cli.metastore_changes import add_adopt_bucket, grow_commit_shards, open_current, seal_secrets
from headrace.cli.options import STORE, add_settings, settings_from
from headrace.cli.output import write
from headrace.config.cluster_values import proposed
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.api.cluster import Rotation
from headrace.metastore.life.own_bucket import claim_bucket, most_missing, other_bucket
from headrace.metastore.log.own_records import ScramKeys, UserScramKeysRecord
from headrace.metastore.log.scram_keys import DIGESTS, MECHANISMS, SealedKeys, scram_keys
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.address import url_with_password
from headrace.metastore.postgres.formatted import FormattedCluster, formatted_cluster, sampled_files
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.sealing import Sealing
from headrace.storage.bucket_properties import bucket_address
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import check_cluster_id, random_cluster_id, read_cluster_id, write_cluster_id
from headrace.storage.errors import AlreadyExistsError, InvalidError, UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.store import ObjectStore

ITERATIONS = (4_096, 16_384)
"""Kafka's bounds; the lower one is the default."""
_FORM = re.compile(r"(SCRAM-SHA-256|SCRAM-SHA-512)=\[([^\]]*)\]")
_TOLD = "SCRAM-SHA-512=[name=USER,password-file=PATH], with iterations=N if not 4096"


class FirstUser(NamedTuple):
    name: str
    keys: ScramKeys


def parse_user(text: str) -> FirstUser:
    """Parse one --add-scram. ConfigError for anything else, and for a password in the argument."""
    match = _FORM.fullmatch(text)
    given = dict(part.partition("=")[::2] for part in match[2].split(",")) if match else {}
    if "password" in given:
        raise ConfigError("--add-scram: arguments are no place for a password: use password-file=PATH")
    unknown = given.keys() - {"name", "password-file", "iterations"}
    if match is None or unknown or not given.get("name") or not given.get("password-file"):
        raise ConfigError(f"--add-scram: not of the form {_TOLD}")
    iterations = given.get("iterations", str(ITERATIONS[0]))
    if not iterations.isdecimal() or not ITERATIONS[0] <= int(iterations) <= ITERATIONS[1]:
        raise ConfigError(f"--add-scram: iterations: not between {ITERATIONS[0]} and {ITERATIONS[1]}: {iterations}")
    try:
        password = Path(given["password-file"]).read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"--add-scram: cannot read: {given['password-file']}: {error.strerror}") from error
    if not password:
        raise ConfigError(f"--add-scram: empty password: {given['password-file']}")
    mechanism, salt = MECHANISMS[match[1]], secrets.token_bytes(32)
    salted = hashlib.pbkdf2_hmac(DIGESTS[mechanism], password, salt, int(iterations))
    return FirstUser(given["name"], scram_keys(mechanism, salt, int(iterations), salted))


async def add_users(settings: Settings, users: Sequence[FirstUser]) -> list[str]:
    """Add those that do not exist; returns a line for each. UnavailableError if the log changed meanwhile."""
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        image = await load_image(metastore.cluster)
        new: dict[str, tuple[ScramKeys, ...]] = {}
        for name, keys in users:
            if name not in image.scram_credentials:
                new[name] = (*new.get(name, ()), keys)
        sealed_keys = SealedKeys(Sealing(settings.metadata_secret_keys), metastore.cluster_id)
        records = [
            UserScramKeysRecord(user_name=name, keys=tuple(sealed_keys.sealed(image, name, each) for each in keys))
            for name, keys in new.items()
        ]
        if records and not await metastore.cluster.append_records(image.offset, records):
            raise UnavailableError("the metadata log changed: repeat the command with --ignore-formatted")
    finally:
        await metastore.close()
    return [f"{'Adding' if name in new else 'Skipping'} user {name}" for name in dict.fromkeys(u.name for u in users)]


SHOWN = ("metastore.url", "bucket", *STORE)
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
