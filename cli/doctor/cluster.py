"""Judges the cluster as its metadata log describes it: agents, what they support, and whether clients reach them.

Place: one area of `headrace doctor`, after Postgres was found to be in order.
Invariant: reads only. What is at the advertised addresses is looked at by addresses.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from headrace.agent.limits.client_rows import RowUse, row_use
from headrace.cli.doctor.addresses import examine_addresses
from headrace.cli.doctor.agents import examine_agents
from headrace.cli.doctor.backups import judge_backup
from headrace.cli.doctor.bucket_facts import BucketFacts, verdict_of
from headrace.cli.doctor.deadline import in_time
from headrace.cli.doctor.findings import Area, Finding
from headrace.cli.doctor.remedies import of_postgres
from headrace.cli.doctor.running import judge_jobs, judge_life, judge_own_bucket, judge_roles
from headrace.cli.doctor.zones import judge_zones
from headrace.config.settings import Settings
from headrace.metastore.api.agents import (
    AGENT_FEATURES,
    COMMIT_SHARDS,
    COMMIT_SHARDS_MAX,
    METADATA_FORMAT,
    SUPPORTED_FEATURES,
)
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.metastore.log.loading import load_image
from headrace.metastore.log.settings_in_force import SettingsInForce
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.bucket_properties import bucket_address
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

AREA = Area("cluster")
AREA_SECONDS = 90.0
ANSWER_MS = 5_000
"""The limit of one statement; of the settings if theirs is lower."""
ASK_AGAIN = "run the doctor again; if it stays so, look at Postgres, at the agents and at the network"


async def examine(
    settings: Settings, facts: BucketFacts | None, clock: Clock, *, asks_by_http: bool = True
) -> list[Finding]:
    """Every finding about the cluster. `facts` None: the bucket is unknown, or was found to be unusable.

    `asks_by_http`: whether agents are asked at http.port of the settings, too.
    """
    work = _examine(settings, facts, clock, asks_by_http)
    return await in_time(clock, AREA_SECONDS, AREA, "answers", work, ASK_AGAIN)


async def _examine(settings: Settings, facts: BucketFacts | None, clock: Clock, asks_by_http: bool) -> list[Finding]:
    answer_ms = min(settings.metastore_statement_timeout_ms, ANSWER_MS)
    limited = msgspec.structs.replace(settings, metastore_pool_size=1, metastore_statement_timeout_ms=answer_ms)
    try:
        metastore = await PostgresMetastore.open(settings.metastore_url, limited)
    except HeadraceError as error:
        return [AREA.bad("open", str(error), of_postgres(str(error), "see postgres above"))]
    try:
        image = await load_image(metastore.cluster)
        in_force = SettingsInForce(settings, lambda: image).current()
        found = [*judge_agents(image), *judge_zones(image, settings)]
        found += judge_shards(image, metastore.commit_shards)
        found += judge_rows(row_use(await metastore.housekeeping.client_rows(), in_force))
        found.append(judge_roles((await metastore.cluster.setting_proposals()).role_counts))
        found += judge_jobs(await metastore.reports.count_jobs())
        if settings.bucket:
            found.append(judge_own_bucket(await metastore.life.known_bucket(), bucket_address(settings.bucket)))
        if facts is not None:
            found += await _compared(metastore, facts, in_force, clock)
    except HeadraceError as error:
        return [AREA.bad("read", str(error), "see postgres and bucket above")]
    finally:
        await metastore.close()
    found += await examine_addresses(image, settings, metastore.cluster_id, in_force, clock)
    return [*found, *await examine_agents(image.live_agents(), settings, clock)] if asks_by_http else found


async def _compared(
    metastore: PostgresMetastore, facts: BucketFacts, in_force: Settings, clock: Clock
) -> list[Finding]:
    """Return what bucket and database say of each other."""
    if (bucket_id := facts.cluster_id) not in (None, metastore.cluster_id):
        to_do = "correct bucket or metastore.url"
        return [
            AREA.bad("one cluster", f"the bucket belongs to {bucket_id}, the database to {metastore.cluster_id}", to_do)
        ]
    backup = judge_backup(facts.backup, await metastore.wal_archive(), clock.wall_ms(), in_force.file_delete_delay_ms)
    return [judge_life(await verdict_of(metastore.life, facts)), backup]


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
    for feature in (METADATA_FORMAT, *sorted({*SUPPORTED_FEATURES, *AGENT_FEATURES} - {METADATA_FORMAT})):
        by_level = _by_level(live, feature)
        if len(by_level) > 1:
            groups = "; ".join(f"{level}: {', '.join(map(str, nodes))}" for level, nodes in sorted(by_level.items()))
            found = f"agents are of different releases, and differ in {feature}: {groups}"
            return AREA.warn("versions", found, "finish the upgrade (docs/operate/UPGRADES.md)")
    newest, active = max(_by_level(live, METADATA_FORMAT)), image.metadata_format
    if active < min(newest, SUPPORTED_FEATURES[METADATA_FORMAT].max_level):
        to_do = f"kafka-features.sh upgrade --feature {METADATA_FORMAT}={newest} (docs/operate/UPGRADES.md)"
        return AREA.warn("versions", f"{METADATA_FORMAT}={active}, and all agents support {newest}", to_do)
    return AREA.ok("versions", f"all agents are of one version, {METADATA_FORMAT}={active}")


def _by_level(live: Iterable[AgentImage], feature: str) -> dict[int, list[int]]:
    """Return the agents by the highest level of the feature that they support; of metadata.format at least 1."""
    by_level: dict[int, list[int]] = {}
    for agent in live:
        known = agent.features.get(feature)
        lowest = 1 if feature == METADATA_FORMAT else 0
        by_level.setdefault(lowest if known is None else known.max_level, []).append(agent.node_id)
    return by_level
