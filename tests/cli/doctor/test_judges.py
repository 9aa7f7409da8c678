"""The doctor's judges on facts alone: where ok, warn and bad begin."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.agent.limits.client_rows import row_use
from headrace.cli.doctor import (
    agents,
    bucket,
    bucket_facts,
    certificates,
    cluster,
    command,
    host,
    postgres,
    servers,
    tables,
)
from headrace.cli.doctor.findings import Finding, Level
from headrace.config.settings import Settings
from headrace.metastore.api.agents import METADATA_FORMAT, FeatureRange
from headrace.metastore.api.housekeeping import RowCounts
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.reports import JobCount
from headrace.metastore.backups import BackupKind, BackupRecord, WalArchive
from headrace.metastore.life.verdict import LifeVerdict
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.metastore.postgres.diagnosis.diagnosis import FlushFiles, ServerState, TableState
from headrace.metastore.upkeep_watch import OVERDUE_SECONDS
from headrace.storage.objects.s3_client import BucketRules, Expiration
from tests.manual_clock import ManualClock

SOUND = ServerState(
    version="18.1",
    now=datetime(2026, 1, 1, tzinfo=UTC),
    fsync=True,
    full_page_writes=True,
    synchronous_commit="on",
    max_connections=1_000,
    reserved_connections=3,
    connections=20,
    standbys=1,
    synchronous_standbys=1,
    hidden_standbys=0,
    synchronous_standby_names="ANY 1 (standby_a)",
    longest_transaction_s=0.0,
    prepared_transactions=0,
    wal_kept_for_idle_slots=0,
    oldest_transaction_age=1_000,
    autovacuum=True,
    database_bytes=1 << 20,
)
HOST = host.HostFacts(descriptors=65_536, backlog=4_096, cpus=4, memory_bytes=8 << 30)


def worst(findings: Sequence[Finding]) -> tuple[str, str]:
    """(check, level) of the worst finding."""
    order = list(Level)
    found = max(findings, key=lambda finding: order.index(finding.level))
    return found.check, found.level.value


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "ok"),
        ({"fsync": False}, ("durability", "bad")),
        ({"full_page_writes": False}, ("durability", "bad")),
        ({"synchronous_commit": "remote_apply"}, "ok"),
        ({"standbys": 0, "synchronous_standbys": 0, "synchronous_standby_names": ""}, ("standbys", "warn")),
        ({"synchronous_standbys": 0, "synchronous_standby_names": ""}, ("standbys", "warn")),
        ({"standbys": 0, "synchronous_standbys": 0}, ("standbys", "bad")),
        ({"synchronous_standbys": 0}, ("standbys", "bad")),
        ({"synchronous_standbys": 0, "hidden_standbys": 1}, "ok"),
        ({"synchronous_standbys": 0, "hidden_standbys": 1, "synchronous_standby_names": ""}, ("standbys", "warn")),
        ({"connections": 996}, ("connections", "bad")),
        ({"connections": 980}, ("connections", "warn")),
        ({"longest_transaction_s": 61.0}, ("transactions", "warn")),
        ({"longest_transaction_s": 601.0}, ("transactions", "bad")),
        ({"prepared_transactions": 1}, ("transactions", "warn")),
        ({"wal_kept_for_idle_slots": 11 << 30}, ("replication slots", "warn")),
        ({"oldest_transaction_age": 1_100_000_000}, ("transaction ids", "warn")),
        ({"oldest_transaction_age": 1_900_000_000}, ("transaction ids", "bad")),
        ({"autovacuum": False}, ("autovacuum", "bad")),
    ],
)
def test_a_server(change: dict[str, Any], expected: Any) -> None:
    found = worst(list(servers.judge_server(SOUND._replace(**change), Settings())))
    assert (found[1] if expected == "ok" else found) == expected


@pytest.mark.parametrize(("ahead", "level"), [(0.2, "ok"), (-2.0, "warn"), (31.0, "bad")])
def test_a_clock(ahead: float, level: str) -> None:
    assert postgres.judge_clock(ahead).level.value == level
    assert ("behind" if ahead > 0 else "ahead") in postgres.judge_clock(ahead).found


def test_a_bulk_write_that_makes_no_progress() -> None:
    assert list(postgres.judge_bulk_writes(120.0)) == []
    assert worst(list(postgres.judge_bulk_writes(600.0))) == ("bulk writes", "bad")


def test_tables_and_round_trips() -> None:
    full = TableState("partition_heads", 10, 200_000, 1 << 30)
    assert worst(list(servers.judge_tables([full]))) == ("bloat", "warn")
    assert worst(list(servers.judge_tables([full._replace(live_rows=300_000)]))) == ("bloat", "ok")
    assert [postgres.judge_round_trip("db", ms).level.value for ms in (1.0, 9.0)] == ["ok", "warn"]
    assert [bucket.judge_put(ms).level.value for ms in (20.0, 400.0)] == ["ok", "warn"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"descriptors": 1_024}, ("file descriptors", "bad")),
        ({"descriptors": 4_096}, ("file descriptors", "warn")),
        ({"backlog": 128}, ("connection queue", "warn")),
        ({"memory_bytes": 1 << 30}, ("size", "warn")),
    ],
)
def test_a_machine(change: dict[str, int], expected: tuple[str, str]) -> None:
    assert worst(list(host.judge(HOST)))[1] == "ok"
    assert worst(list(host.judge(HOST._replace(**change)))) == expected


def an_agent(node_id: int, level: int, rack: str, *, fenced: bool = False) -> AgentImage:
    features = {METADATA_FORMAT: FeatureRange(1, level)}
    return AgentImage(node_id, 1, uuid.uuid4(), "host", 9092, rack, fenced, features=features)


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        ([an_agent(1, 4, "a"), an_agent(2, 4, "b")], ("agents", "ok")),
        ([], ("agents", "warn")),
        ([an_agent(1, 4, "a")], ("agents", "warn")),
        ([an_agent(1, 4, "a"), an_agent(2, 4, "b"), an_agent(3, 4, "c", fenced=True)], ("agents", "warn")),
        ([an_agent(1, 3, "a"), an_agent(2, 4, "b")], ("versions", "warn")),
    ],
)
def test_agents(agents: list[AgentImage], expected: tuple[str, str]) -> None:
    features = {METADATA_FORMAT: FeatureRange(1, 4)}
    image = MetadataImage(agents={agent.node_id: agent for agent in agents}, features=features)
    assert worst(list(cluster.judge_agents(image))) == expected


@pytest.mark.parametrize(
    ("in_a", "in_b", "shards", "to_do"),
    [
        (4, 3, 8, ""),
        (5, 2, 8, "--to 32"),
        (0, 0, 8, ""),
        (12, 12, 8, "--to 64"),
        (9, 0, 3, "--to 48"),
        (600, 0, 1024, ""),
    ],
)
def test_commit_shards_for_the_largest_zone(in_a: int, in_b: int, shards: int, to_do: str) -> None:
    agents = [an_agent(number, 4, "a" if number < in_a else "b") for number in range(in_a + in_b)]
    found = list(cluster.judge_shards(MetadataImage(agents={agent.node_id: agent for agent in agents}), shards))
    assert [finding.to_do.endswith(to_do) for finding in found] == [True] * bool(to_do)


def test_a_format_that_lags() -> None:
    agents = {node_id: an_agent(node_id, 4, "a") for node_id in (1, 2)}
    assert worst(list(cluster.judge_agents(MetadataImage(agents=agents)))) == ("versions", "warn")


@pytest.mark.parametrize(
    ("prefix", "rule", "level"),
    [
        ("logs", "", "bad"),
        ("logs", "logs/", "bad"),
        ("logs", "logs/old/", "bad"),
        ("logs", "else/", "ok"),
        ("", "x/", "bad"),
    ],
)
def test_rules_that_delete(prefix: str, rule: str, level: str) -> None:
    rules = BucketRules(versioned=False, expirations=(Expiration("r", rule, 3),), old_versions_expire=False)
    assert worst(list(bucket.judge_rules(rules, prefix)))[1] == level


def test_a_store_that_does_not_tell() -> None:
    rules = BucketRules(versioned=None, expirations=None, old_versions_expire=False, refusal="AccessDenied")
    (finding,) = bucket.judge_rules(rules, "")
    assert (finding.level.value, "AccessDenied" in finding.found) == ("unknown", True)


@pytest.mark.parametrize(
    ("body", "status", "level", "part"),
    [
        (b'{"status": "ready"}', 200, Level.OK, "says ready"),
        (b'{"status": "not ready", "reason": "lease: ran out"}', 503, Level.BAD, "/readyz says lease: ran out"),
        (b'{"status": "ready", "details": ["bucket: fails here"]}', 200, Level.WARN, "bucket: fails here"),
    ],
)
def test_what_readyz_says_is_shown(body: bytes, status: int, level: Level, part: str) -> None:
    (found,) = agents.judge_readiness({"7": agents.Told(status=status, body=body)})
    assert (found.level, part in found.found) == (level, True)
    assert list(agents.judge_readiness({"7": agents.Told(body=b"<html>")})) == [], "it is another program's port"


@pytest.mark.parametrize(
    ("ahead_days", "level", "part"),
    [
        (0, Level.OK, "for 30 days"),
        (17, Level.WARN, "for 13 days"),
        (32, Level.BAD, "expired 2 days ago"),
        (-3, Level.BAD, "valid only in 2.0 days"),
    ],
)
def test_a_certificate(ahead_days: int, level: Level, part: str) -> None:
    day_ms = certificates.DAY_MS
    dates = certificates.Dates(99 * day_ms, 130 * day_ms)
    found = certificates.judge_certificate(bucket.AREA, "s3:443", dates, (100 + ahead_days) * day_ms)
    assert (found.level, part in found.found) == (level, True)
    assert certificates.judge_certificate(bucket.AREA, "s3:443", "no answer", 0).level is Level.UNKNOWN


@pytest.mark.parametrize("to_do", ["", "change it"])
def test_what_is_not_ok_says_what_to_do(to_do: str) -> None:
    with pytest.raises(ValueError, match="unless it is ok"):
        Finding("a", "c", Level.WARN if not to_do else Level.OK, "f", to_do)


@pytest.mark.requirement("X7")
def test_rows_of_clients_are_named_from_eighty_percent_on() -> None:
    counts = RowCounts(transactional_ids=799_999, producer_states=0, committed_offsets=8_000_000)
    found = list(cluster.judge_rows(row_use(counts, Settings())))
    assert [(each.check, each.level) for each in found] == [("max.committed.offsets", Level.WARN)]
    assert "8,000,000 of 10,000,000" in found[0].found


@pytest.mark.parametrize(
    ("verdict", "level"),
    [
        (LifeVerdict.CURRENT, Level.OK),
        (LifeVerdict.RECORD, Level.OK),
        (LifeVerdict.BEGIN, Level.WARN),
        (LifeVerdict.RESTORED, Level.BAD),
        (LifeVerdict.SUPERSEDED, Level.BAD),
        (LifeVerdict.WRONG_BUCKET, Level.BAD),
    ],
)
def test_a_life_that_is_not_current_is_bad(verdict: LifeVerdict, level: Level) -> None:
    assert cluster.judge_life(verdict).level is level


def test_a_cluster_needs_a_compactor() -> None:
    assert cluster.judge_roles({"broker": 2}).level is Level.BAD
    assert cluster.judge_roles({"broker": 2, "compactor": 1}).level is Level.OK
    assert cluster.judge_roles({}).level is Level.WARN, "it has not started yet"


def test_tables_wait_for_ten_intervals() -> None:
    def row(waited_ms: int) -> dict[str, Any]:
        return {"table": "orders", "condition": "following", "reason": None, "waited_ms": waited_ms}

    def checks(waited_ms: int, interval_ms: int) -> list[str]:
        return [each.check for each in tables.judge_tables([row(waited_ms), row(0)], interval_ms)]

    assert (checks(600_000, 60_000), checks(600_001, 60_000)) == (["following"], ["late"])
    assert (checks(60_000, 200), checks(60_001, 200)) == (["following"], ["late"])
    unreadable = row(0) | {"condition": "unknown", "reason": "no answer"}
    assert [each.level for each in tables.judge_tables([unreadable], 200)] == [Level.BAD]


def test_tables_need_a_process_with_the_role() -> None:
    assert [each.level for each in tables.judge_role(2, {"compactor": 1})] == [Level.BAD]
    assert [each.level for each in tables.judge_role(2, {"tables": 1})] == [Level.OK]
    assert list(tables.judge_role(0, {"compactor": 1})) == []


def test_background_work_that_waits_or_was_given_up() -> None:
    late_ms = int(OVERDUE_SECONDS * 1000) + 1
    (fine,) = cluster.judge_jobs(
        [JobCount("plan", JobState.WAITING, 3, 0), JobCount("compact-large", JobState.WAITING, 1, late_ms)]
    )
    assert fine.level is Level.OK
    late, given_up = cluster.judge_jobs(
        [JobCount("plan", JobState.WAITING, 3, late_ms), JobCount("compact", JobState.GIVEN_UP, 2, 0)]
    )
    assert (late.level, late.found) == (Level.WARN, "background work is overdue, kind plan: 900 s")
    assert given_up.found == "2 jobs failed ten times and were given up"


HOUR_MS = 3_600_000
NO_ARCHIVE, ARCHIVE = WalArchive(False, None, False), WalArchive(True, 60.0, False)


@pytest.mark.parametrize(
    ("record", "archive", "level", "told"),
    [
        (None, ARCHIVE, Level.WARN, "no backup of Postgres is recorded"),
        (BackupRecord(BackupKind.DUMP, 99 * HOUR_MS), NO_ARCHIVE, Level.OK, "would go back 1.0 h"),
        (BackupRecord(BackupKind.DUMP, 76 * HOUR_MS), NO_ARCHIVE, Level.OK, "would go back 24.0 h"),
        (BackupRecord(BackupKind.DUMP, 75 * HOUR_MS), NO_ARCHIVE, Level.WARN, "would go back 25.0 h"),
        (BackupRecord(BackupKind.DUMP, 10 * HOUR_MS), ARCHIVE, Level.WARN, "would go back 90.0 h"),
        (BackupRecord(BackupKind.BASE, 10 * HOUR_MS), ARCHIVE, Level.OK, "(base) would go back 0.0 h"),
        (BackupRecord(BackupKind.BASE, 10 * HOUR_MS), NO_ARCHIVE, Level.WARN, "would go back 90.0 h"),
        (
            BackupRecord(BackupKind.BASE, 10 * HOUR_MS),
            WalArchive(True, 1e6, True),
            Level.WARN,
            "archiving of WAL fails",
        ),
    ],
)
def test_a_backup_is_no_older_than_deletions_wait(
    record: BackupRecord | None, archive: WalArchive, level: Level, told: str
) -> None:
    found = bucket_facts.judge_backup(record, archive, 100 * HOUR_MS, 24 * HOUR_MS)
    assert found.level is level
    assert told in found.found


async def test_postgres_is_asked_before_a_stores_client_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading it blocks the event loop for a second of CPU: a healthy Postgres would seem not to answer."""
    steps: list[str] = []

    async def of_postgres(*_: object) -> list[Finding]:
        steps.append("postgres begins")
        await asyncio.sleep(0)
        steps.append("postgres ends")
        return [postgres.AREA.bad("connect", "away", "start it")]

    async def of_bucket(*_: object) -> list[Finding]:
        steps.append("bucket")
        return []

    monkeypatch.setattr(postgres, "examine", of_postgres)
    monkeypatch.setattr(bucket, "examine", of_bucket)
    await command.examine(Settings(), ManualClock(), random.Random(1))
    assert steps == ["postgres begins", "postgres ends", "bucket"]


def test_low_latency_is_hinted_at_where_most_files_are_small_objects_of_a_bucket_on_s3() -> None:
    def told(files: FlushFiles, bucket: str = "s3://b/p") -> list[str]:
        return [found.found for found in cluster.hint_low_latency(files, bucket)]

    (line,) = told(FlushFiles(1_000, 905, 99_900))
    assert line.startswith("off; 90 % of the newest 1,000 files are below 64 KiB (10.0 PUTs a second): low.latency")
    assert told(FlushFiles(1_000, 500, 0))
    assert told(FlushFiles(1_000, 499, 99_900)) == told(FlushFiles(99, 99, 100)) == told(FlushFiles(0, 0, 0)) == []
    assert told(FlushFiles(1_000, 905, 99_900), "file:///d") == told(FlushFiles(1_000, 905, 99_900), "") == []
