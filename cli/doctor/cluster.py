"""Judges the cluster as its metadata log describes it: agents, what they support, their zones, what is running.

Place: one area of `headrace doctor`, after Postgres was found to be in order; the console shows the same as alarms.
agents.py looks at the advertised addresses.
Invariant of zones: pure. A zone is what an agent registered as broker.rack; clients name theirs as client.rack, or
in client.id.
Invariant: reads only; the judges decide on facts alone.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from headrace.agent.limits.client_rows import RowUse, row_use
from headrace.agent.produce.inline_policy import BEHIND_FACTOR, RETAINED_WAL_BYTES
from headrace.cli.doctor.agents import examine_addresses, examine_agents
from headrace.cli.doctor.bucket_facts import BucketFacts, judge_backup, verdict_of
from headrace.cli.doctor.deadline import in_time
from headrace.cli.doctor.findings import Area, Finding, of_postgres
from headrace.cli.doctor.links import examine as examine_links
from headrace.cli.doctor.streams import examine as examine_streams
from headrace.config.addresses import is_object_store
from headrace.config.listeners import COMPACTOR
from headrace.config.settings import Settings
from headrace.config.topic_configs import LOW_LATENCY_ENABLE
from headrace.metastore.api.agents import (
    AGENT_FEATURES,
    COMMIT_SHARDS,
    COMMIT_SHARDS_MAX,
    METADATA_FORMAT,
    SUPPORTED_FEATURES,
)
from headrace.metastore.api.inline import NO_SLOT, InlineState
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.life import KnownBucket
from headrace.metastore.api.reports import JobCount
from headrace.metastore.life.own_bucket import ADOPT
from headrace.metastore.life.verdict import LifeVerdict
from headrace.metastore.life.watch import REASONS
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.diagnosis.diagnosis import FlushFiles, ServerState, flush_files, server_state
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.upkeep_watch import overdue_jobs
from headrace.storage.bucket_properties import bucket_address
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

AREA = Area("cluster")
_ACROSS = "clients of that zone read from other zones, and pay for it"


def judge_zones(image: MetadataImage, settings: Settings) -> Iterator[Finding]:
    """Return a line for each trouble; one for all if there is none; none without live agents or zones.

    `settings`: of this machine; broker.rack and node.id are compared with what is registered.
    """
    live = image.live_agents()
    zones = sorted({agent.rack for agent in live if agent.rack})
    if not live or not (zones or settings.broker_rack):
        return
    found = [*_unnamed(live), *_alike(live, zones), *_in_two_zones(live), *_left(image, zones)]
    found += _of_this_machine(image, settings, zones)
    yield from found
    if not found:
        yield AREA.ok("zones", f"each live agent is in one of: {', '.join(zones)}")


def _unnamed(live: Sequence[AgentImage]) -> Iterator[Finding]:
    unnamed = [agent.node_id for agent in live if not agent.rack]
    if unnamed and len(unnamed) < len(live):
        found = f"agents without a zone: {_ids(unnamed)}; the others have one"
        yield AREA.warn("zones", found, "set broker.rack (--zone) on each agent")


def _alike(live: Sequence[AgentImage], zones: Sequence[str]) -> Iterator[Finding]:
    """Names that differ in case and punctuation only."""
    spellings: dict[str, list[str]] = defaultdict(list)
    for zone in zones:
        spellings["".join(c for c in zone.casefold() if c.isalnum())].append(zone)
    for same in spellings.values():
        if len(same) > 1:
            agents = [f"{zone}: {_ids([a.node_id for a in live if a.rack == zone])}" for zone in same]
            found = f"names of zones that may be one: {'; '.join(agents)}"
            yield AREA.warn("zones", found, "use the name of the cloud's zone in each broker.rack and client.rack")


def _in_two_zones(live: Sequence[AgentImage]) -> Iterator[Finding]:
    by_host: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for agent in live:
        if agent.rack and not _is_loopback(agent.host):
            by_host[agent.host][agent.rack].append(agent.node_id)
    for host, by_zone in by_host.items():
        if len(by_zone) > 1:
            agents = "; ".join(f"{zone}: {_ids(ids)}" for zone, ids in sorted(by_zone.items()))
            found = f"agents at one host, {host}, name different zones: {agents}"
            yield AREA.warn("zones", found, "correct broker.rack of one of them, or advertised.listeners")


def _left(image: MetadataImage, zones: Sequence[str]) -> Iterator[Finding]:
    gone: dict[str, list[int]] = defaultdict(list)
    for agent in image.agents.values():
        if agent.rack and agent.rack not in zones:
            gone[agent.rack].append(agent.node_id)
    for zone, ids in sorted(gone.items()):
        found = f"no agent of zone {zone} is live (gone: {_ids(ids)}): {_ACROSS}"
        yield AREA.warn("zones", found, "start one there, or unregister them: headrace cluster unregister -i ID")


def _of_this_machine(image: MetadataImage, settings: Settings, zones: Sequence[str]) -> Iterator[Finding]:
    own = settings.broker_rack
    agent = None if settings.node_id is None else image.agents.get(settings.node_id)
    if agent is not None and agent.live and (agent.rack or "") != (own or ""):
        found = (
            f"these settings say node.id={agent.node_id} broker.rack={own or 'unset'}, and it runs in zone {agent.rack}"
        )
        yield AREA.warn("zones", found, "restart it if broker.rack was changed, else correct node.id or broker.rack")
    elif own and own not in zones:
        found = f"these settings say broker.rack={own}, and no live agent is in that zone: {_ACROSS}"
        yield AREA.warn("zones", found, f"start an agent there, or correct broker.rack (live: {', '.join(zones)})")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _ids(node_ids: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(node_ids)))


def judge_own_bucket(known: KnownBucket | None, address: str) -> Finding:
    """Judge whether the setting `bucket` names the bucket that has the metastore's files."""
    if known is None:
        found = "the metastore does not know its bucket yet: another one could be taken for it"
        return AREA.warn("bucket", found, "start an agent of this version, which records it")
    if known.address != address:
        to_do = f"correct bucket; {ADOPT} (docs/operate/POSTGRES.md)"
        return AREA.bad("bucket", f"the metastore has its files in {known.address}, and this is {address}", to_do)
    return AREA.ok("bucket", f"the metastore has its files in {address}")


def judge_life(verdict: LifeVerdict) -> Finding:
    """Judge whether agents may write to this Postgres."""
    if verdict is LifeVerdict.BEGIN:
        return AREA.warn("life", "this server was promoted, and no agent has begun its life yet", "start an agent")
    if (reason := REASONS.get(verdict)) is not None:
        found = f"agents write nothing: {reason}"
        to_do = "docs/operate/POSTGRES.md: after a restore or a move, headrace migrate --restored"
        if verdict is LifeVerdict.OTHER_BUCKET:
            to_do = f"correct bucket; {ADOPT} (docs/operate/POSTGRES.md)"
        return AREA.bad("life", found, to_do)
    return AREA.ok("life", "this Postgres is the metastore that the bucket names")


def judge_roles(counts: Mapping[str, int]) -> Finding:
    """`counts`: running processes by role."""
    if not any(counts.values()):
        return AREA.warn("compactor", "no process of the cluster is running", "start an agent and a compactor")
    if not counts.get(COMPACTOR):
        found = "no process has the role compactor: no records expire, no files are merged and none are deleted"
        return AREA.bad("compactor", found, "run headrace compactor, or add compactor to process.roles")
    return AREA.ok("compactor", f"{counts[COMPACTOR]} processes have the role compactor")


def judge_jobs(counts: Sequence[JobCount]) -> Iterator[Finding]:
    """Jobs that wait for too long, and jobs that were given up."""
    late = overdue_jobs(counts)
    given_up = sum(each.jobs for each in counts if each.state is JobState.GIVEN_UP)
    if late:
        to_do = "start more compactors, or raise compactor.threads (docs/operate/COMPACTION.md)"
        yield AREA.warn("background work", "; ".join(late), to_do)
    if given_up:
        to_do = "the column last_error of the table jobs says why"
        yield AREA.warn("jobs", f"{given_up} jobs failed ten times and were given up", to_do)
    if not late and not given_up:
        yield AREA.ok("background work", "no job waits for long, none was given up")


def low_latency_topics(image: MetadataImage, in_force: Settings) -> str:
    """Return which topics have low.latency.enable, in words; empty if none has it."""
    own = [image.topic_configs(name).get(LOW_LATENCY_ENABLE) for name in image.topics_by_name]
    if in_force.low_latency_enable:
        return "all topics but " + str(own.count("false")) if "false" in own else "all topics"
    return f"topics: {own.count('true')}" if "true" in own else ""


def judge_low_latency(topics: str, state: InlineState, server: ServerState, in_force: Settings) -> Finding:
    """Return whether small files are kept in Postgres and leave it again, and what a promotion would lose of them."""
    waits_s = state.oldest_ms / 1000
    held = f"{topics}; {_mib(state.held_bytes)} in Postgres, the oldest file {waits_s:.0f} s old"
    if state.archive_fails:
        to_do = "mend archive_command: small files go into the bucket until WAL is archived again"
        return AREA.warn("low latency", f"{held}; the WAL archive fails", to_do)
    if state.retained_wal_bytes > RETAINED_WAL_BYTES:
        to_do = "mend the standby or drop its slot: small files go into the bucket until then"
        return AREA.warn("low latency", f"{held}; {_mib(state.retained_wal_bytes)} of WAL are retained", to_do)
    if waits_s * 1000 > BEHIND_FACTOR * in_force.low_latency_move_ms:
        to_do = "start more compactors, or raise compactor.threads: small files go into the bucket until then"
        return AREA.warn("low latency", f"{held}: merges do not move them in time", to_do)
    if state.held_bytes >= in_force.low_latency_held_max_bytes or not (state.free_slots or state.slot != NO_SLOT):
        to_do = "start more compactors, or raise low.latency.held.max.bytes: small files go into the bucket until then"
        return AREA.warn("low latency", f"{held}: no more room", to_do)
    if server.standbys and not server.synchronous_standby_names:
        to_do = "set synchronous_standby_names, or accept that a promotion loses them: they are nowhere else"
        return AREA.warn("low latency", f"{held}; no standby is synchronous", to_do)
    return AREA.ok("low latency", held)


SMALL_BYTES = 64 * 1024
"""Files up to this are clearly cheaper in Postgres than as objects: docs/operate/LOW_LATENCY.md."""
SMALL_PERCENT, FILES_MIN = 50, 100


def hint_low_latency(files: FlushFiles, bucket: str) -> Iterator[Finding]:
    """Return what low.latency.enable would do, while no topic has it, if most files are small and each is a PUT."""
    percent = 100 * files.small // max(files.files, 1)
    if not is_object_store(bucket) or files.files < FILES_MIN or percent < SMALL_PERCENT:
        return
    puts_s = (files.files - 1) * 1000 / max(files.span_ms, 1)
    found = (
        f"off; {percent} % of the newest {files.files:,} files are below 64 KiB ({puts_s:,.1f} PUTs a second):"
        " low.latency.enable would keep small ones in Postgres first, acknowledged without a PUT, and merge about a"
        " minute of them into one object (docs/operate/LOW_LATENCY.md)"
    )
    yield AREA.ok("low latency", found)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 1024**2:,.0f} MiB"


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
        if (topics := low_latency_topics(image, in_force)) and image.has_low_latency:
            state, server = await metastore.inline.inline_state(), await server_state(metastore.pool)
            found.append(judge_low_latency(topics, state, server, in_force))
        elif not topics:
            found += hint_low_latency(await flush_files(metastore.pool, SMALL_BYTES), settings.bucket or "")
        if settings.bucket:
            found.append(judge_own_bucket(await metastore.life.known_bucket(), bucket_address(settings.bucket)))
        found += await examine_links(metastore, image, clock.wall_ms())
        found += await examine_streams(metastore, image, clock)
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
