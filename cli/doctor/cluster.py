"""Judges the cluster as its metadata log describes it: agents, what they support, and whether clients reach them.

Place: one area of `headrace doctor`, after Postgres was found to be in order.
Invariant: reads only; a connection to an advertised address is closed before a byte is sent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from headrace.agent.limits.client_rows import RowUse, row_use
from headrace.cli.doctor.backups import judge_backup
from headrace.cli.doctor.findings import Area, Finding
from headrace.cli.doctor.running import judge_jobs, judge_life, judge_own_bucket, judge_roles, life_verdict
from headrace.config.addresses import address_text
from headrace.config.settings import Settings
from headrace.metastore.api.agents import COMMIT_SHARDS, COMMIT_SHARDS_MAX, METADATA_FORMAT, SUPPORTED_FEATURES
from headrace.metastore.backups import read_backup
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.metastore.log.loading import load_image
from headrace.metastore.log.settings_in_force import SettingsInForce
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.bucket_properties import bucket_address
from headrace.storage.clock import Clock
from headrace.storage.cluster_properties import read_cluster_id
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.store import ObjectStore

AREA = Area("cluster")
CONNECT_SECONDS = 3.0

_Address = tuple[str, str, int]
"""Listener, host, port."""


async def examine(settings: Settings, store: ObjectStore | None, clock: Clock) -> list[Finding]:
    """Every finding about the cluster. `store` None: the bucket is unknown, or was found to be unusable."""
    try:
        metastore = await PostgresMetastore.open(
            settings.metastore_url, msgspec.structs.replace(settings, metastore_pool_size=1)
        )
    except HeadraceError as error:
        return [AREA.bad("open", str(error), "see postgres above")]
    try:
        image = await load_image(metastore)
        in_force = SettingsInForce(settings, lambda: image).current()
        found = [*judge_agents(image), *judge_shards(image, metastore.commit_shards)]
        found += judge_rows(row_use(await metastore.client_rows(), in_force))
        found.append(judge_roles((await metastore.setting_proposals()).role_counts))
        found += judge_jobs(await metastore.count_jobs())
        if settings.bucket:
            found.append(judge_own_bucket(await metastore.known_bucket(), bucket_address(settings.bucket)))
        if store is not None:
            found += await _beside(metastore, store, in_force, clock)
    except HeadraceError as error:
        return [AREA.bad("read", str(error), "see postgres and bucket above")]
    finally:
        await metastore.close()
    addresses = [(agent, address) for agent in image.live_agents() for address in _addresses(agent)]
    reasons = await asyncio.gather(*(_why_unreachable(host, port) for _, (_, host, port) in addresses))
    return [*found, *judge_addresses(dict(zip([(a.node_id, at) for a, at in addresses], reasons, strict=True)))]


async def _beside(metastore: PostgresMetastore, store: ObjectStore, in_force: Settings, clock: Clock) -> list[Finding]:
    """Return what bucket and database say of each other."""
    if (bucket_id := await read_cluster_id(store)) not in (None, metastore.cluster_id):
        to_do = "correct bucket or metastore.url"
        return [
            AREA.bad("one cluster", f"the bucket belongs to {bucket_id}, the database to {metastore.cluster_id}", to_do)
        ]
    backup = judge_backup(
        await read_backup(store), await metastore.wal_archive(), clock.wall_ms(), in_force.file_delete_delay_ms
    )
    return [judge_life(await life_verdict(metastore, store)), backup]


def judge_agents(image: MetadataImage) -> Iterator[Finding]:
    """Return how many are live, whether they are of one version, and whether the cluster uses what they all support."""
    live = image.live_agents()
    fenced = sorted(agent.node_id for agent in image.agents.values() if not agent.live)
    if not live:
        yield AREA.warn("agents", "none is live", "start one: headrace agent")
        return
    found = f"{len(live)} are live in {len({agent.rack for agent in live})} zones"
    if fenced:
        to_do = "headrace cluster unregister -i ID, for those that will not return"
        yield AREA.warn("agents", f"{found}; gone: {', '.join(map(str, fenced))}", to_do)
    elif len(live) == 1:
        yield AREA.warn("agents", found, "run at least two, in two zones: clients then survive the loss of one")
    else:
        yield AREA.ok("agents", found)
    yield _versions(image, live)


def judge_shards(image: MetadataImage, shards: int) -> Iterator[Finding]:
    """Return whether the largest zone has agents that may lead nothing: less than two commit shards for each."""
    agents = max(Counter(agent.rack for agent in image.live_agents()).values(), default=0)
    wanted = shards
    while wanted < 4 * agents and 2 * wanted <= COMMIT_SHARDS_MAX:
        wanted *= 2
    if 2 * agents > shards < wanted:
        found = f"{shards} for {agents} agents of a zone: some lead few partitions or none"
        yield AREA.warn(COMMIT_SHARDS, found, f"headrace storage grow-commit-shards --to {wanted}")


def judge_rows(uses: Iterable[RowUse]) -> Iterator[Finding]:
    """Return whether clients come near what they may make Postgres keep."""
    for use in uses:
        if use.is_nearly_full:
            found = f"{use.rows:,} of {use.most:,} rows: at the limit new ones are refused"
            yield AREA.warn(use.limit, found, f"look for a client that invents ids, or raise {use.limit}")


def _versions(image: MetadataImage, live: list[AgentImage]) -> Finding:
    by_level: dict[int, list[int]] = {}
    for agent in live:
        known = agent.features.get(METADATA_FORMAT)
        by_level.setdefault(1 if known is None else known.max_level, []).append(agent.node_id)
    newest, active = max(by_level), image.metadata_format
    if len(by_level) > 1:
        groups = "; ".join(f"{level}: {', '.join(map(str, nodes))}" for level, nodes in sorted(by_level.items()))
        return AREA.warn("versions", f"agents differ in {METADATA_FORMAT}: {groups}", "finish the upgrade")
    if active < min(newest, SUPPORTED_FEATURES[METADATA_FORMAT].max_level):
        to_do = f"kafka-features.sh upgrade --feature {METADATA_FORMAT}={newest} (docs/operate/UPGRADES.md)"
        return AREA.warn("versions", f"{METADATA_FORMAT}={active}, and all agents support {newest}", to_do)
    return AREA.ok("versions", f"all agents are of one version, {METADATA_FORMAT}={active}")


def judge_addresses(reasons: Mapping[tuple[int, _Address], str]) -> Iterator[Finding]:
    """One line for each address that cannot be reached from here; `reasons` are empty for those that can."""
    for (node_id, (listener, host, port)), reason in reasons.items():
        if reason:
            found = f"agent {node_id} advertises {listener}://{address_text(host, port)}: {reason}"
            to_do = "set advertised.listeners to an address that clients reach; run the doctor where they run"
            yield AREA.bad("addresses", found, to_do)
    if reasons and not any(reasons.values()):
        yield AREA.ok("addresses", f"all {len(reasons)} advertised addresses are reached from here")


def _addresses(agent: AgentImage) -> list[_Address]:
    return [(listener.name, listener.host, listener.port) for listener in agent.listeners]


async def _why_unreachable(host: str, port: int) -> str:
    """Empty if a connection is accepted."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no answer in {CONNECT_SECONDS:.0f} s"
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    return ""
