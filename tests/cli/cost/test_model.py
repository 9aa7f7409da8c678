"""The cost model: its sums manually, its constants from runs that are in the repository, and the printed page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.agent.produce.flush_policy import PUT_1000_DOLLARS, dollars_per_month
from headrace.agent.produce.pipeline import flush_limits
from headrace.cli.cost.command import BAR_WIDTH, bar, low_latency_hint
from headrace.cli.cost.model import (
    CLOUDS,
    GB,
    HEARTBEAT_SECONDS,
    MIB,
    MONTH_HOURS,
    Constants,
    Prices,
    Workload,
    bills,
    commit_shards,
    compaction_s_per_gb,
    early_flush_bill,
    group_needs,
    inline_zone_bytes_s,
    measured,
    needs,
    prices,
)
from headrace.cli.main import main
from headrace.config.settings import Settings
from headrace.storage.errors import InvalidError

REPOSITORY = Path(__file__).parents[3]
ROUND = Constants(
    {
        "agent_us_per_request": {"bytes": [0, 1 << 20], "us": [0, 1000]},
        "agent_fetch_s_per_gb": {"value": 0},
        "agent_idle_cores": {"value": 0},
        "compaction_s_per_gb": {"bytes": [1 << 10, 1 << 20], "s": [4, 4]},
        "postgres_us_per_commit": {"extents": [1, 2], "us": [1000, 1000]},
        "postgres_wal_bytes_per_commit": {"extents": [1, 2], "bytes": [500, 1000]},
        "postgres_inline_s_per_gb": {"value": 10},
        "inline_wal_per_byte": {"value": 1},
        "postgres_us_per_feed_poll": {"value": 0},
        "postgres_us_per_polled_shard": {"value": 0},
        "postgres_fetch_s_per_gb": {"value": 0},
        "merged_file_bytes": {"value": 64 * MIB},
        "merged_rows_per_file": {"value": 10},
        "metastore_row_bytes": {"value": 100},
        "agent_us_per_group_heartbeat": {"value": 500},
        "agent_us_per_offset_commit": {"value": 1000},
        "postgres_us_per_offset_commit": {"value": 2000},
        "wal_bytes_per_offset_commit": {"value": 300},
        "kafka_mb_s_per_broker": {"value": MIB / 1e6 * 10},
    }
)
ONE = Prices({name: {"value": 1.0} for name in prices().entries if name not in ("currency", "read_on")})


def test_needs_of_a_round_load_by_hand() -> None:
    """30 MiB/s in batches of 1 MiB: each takes 1 ms of an agent; three agents flush ten files a second each."""
    need = needs(Workload(write_mib_s=30, batch_kib=1024, fanout=1, retention_days=1, partitions=1), ROUND)
    assert (need.agents, need.agent_cores) == (3, pytest.approx(0.03))
    merged_s = 30 / 64
    assert need.puts_s == pytest.approx(30 + 2 * merged_s)
    assert need.gets_s == pytest.approx(30 * 3 + 30 + merged_s * 8), "tail: a GET per zone; a merge reads files twice"
    assert need.stored_bytes == pytest.approx(30 * MIB * (86_400 + 2 * 4_500))
    assert need.postgres_cores == pytest.approx(30 * 0.001)
    assert need.wal_bytes_s == pytest.approx(30 * 500)
    rows = need.stored_bytes / (64 * MIB) * 10 + 30 * 4_500 * 2
    assert need.metastore_bytes == pytest.approx(rows * 100 + 30 * 500 * 86_400)
    assert need.compactor_cores == pytest.approx(30 * MIB / GB * 4)


def test_more_load_than_cores_needs_more_agents_and_large_files_replace_linger() -> None:
    """Ten agents at 60 %: 6,000 batches of 1 ms each; 600 MiB/s per agent are 75 files of 8 MiB a second."""
    need = needs(Workload(write_mib_s=6_000, batch_kib=1024, fanout=0), ROUND)
    assert need.agents == 10
    assert need.puts_s == pytest.approx(6_000 / 8 + 2 * 6_000 / 64)
    assert need.gets_s == pytest.approx(6_000 / 8 + 6_000 / 64 * 8), "without readers, only merges read"


def test_the_highest_bill_of_early_flushes_by_hand() -> None:
    """10 a second, the default, are 26.28 million PUTs in a month of 730 hours."""
    need = needs(Workload(write_mib_s=1), ROUND)
    assert early_flush_bill(need, prices()) == pytest.approx(3 * 26_280 * 0.005)
    assert dollars_per_month(10) == pytest.approx(131.4)
    assert prices().value("put_1000") == PUT_1000_DOLLARS, "the agent's metric has the price of the model"


def test_more_early_flushes_than_lingers_are_more_files() -> None:
    few, as_before, many = (
        needs(Workload(write_mib_s=1, partitions=1, early_flushes_s=rate), ROUND) for rate in (0, 10, 100)
    )
    assert few.puts_s == as_before.puts_s
    assert many.puts_s - as_before.puts_s == pytest.approx(3 * 90)
    spent = [early_flush_bill(need, ONE) for need in (few, as_before, many)]
    assert spent == [0, pytest.approx(3 * 10 * 2_628), pytest.approx(3 * 100 * 2_628)]
    for need in (few, as_before, many):
        requests = bills(Workload(write_mib_s=1, partitions=1, early_flushes_s=need.early_flushes_s / 3), ROUND, ONE)
        assert early_flush_bill(need, ONE) <= requests[0].parts["requests"]


def test_kafkas_bill_by_hand() -> None:
    *_, own, tiered, managed = bills(Workload(write_mib_s=20, retention_days=1, local_retention_hours=6), ROUND, ONE)
    month_gb = 20 * MIB / GB * MONTH_HOURS * 3600
    disk_gb = 20 * MIB / GB * 86_400 * 3 / 0.7
    assert own.parts == {
        "machines": pytest.approx(3 * MONTH_HOURS),
        "storage": pytest.approx(disk_gb),
        "between zones": pytest.approx(month_gb * (2 / 3 + 2)),
    }
    assert tiered.parts == own.parts | {
        "storage": pytest.approx(disk_gb / 4 + 20 * MIB / GB * 86_400),
        "requests": pytest.approx(20 / 1024 * 3 * MONTH_HOURS * 3600 / 1000),
    }
    assert managed.parts["between zones"] == pytest.approx(month_gb * 2 / 3), "copies are free there"


def test_tiered_storage_never_keeps_more_on_disks_than_the_retention() -> None:
    tiered, own = (
        bills(Workload(write_mib_s=20, retention_days=1, local_retention_hours=48), ROUND, ONE)[place]
        for place in (3, 2)
    )
    once = 20 * MIB / GB * 86_400
    assert tiered.parts["storage"] == pytest.approx(own.parts["storage"] + once)


@given(
    write=st.floats(0.1, 10_000),
    more=st.floats(1, 10),
    fanout=st.floats(0, 20),
    batch=st.floats(1, 1024),
    days=st.floats(0.1, 365),
)
@example(write=2870.5520217819408, more=1.25, fanout=1.0, batch=17.0, days=1.0)
@example(write=1734.5694907799227, more=1.0625, fanout=1.5, batch=11.0, days=0.5)
def test_a_larger_load_never_needs_or_costs_less(
    write: float, more: float, fanout: float, batch: float, days: float
) -> None:
    small = Workload(write_mib_s=write, fanout=fanout, batch_kib=batch, retention_days=days)
    large = Workload(write_mib_s=write * more, fanout=fanout, batch_kib=batch, retention_days=days)
    constants, listed = measured(), prices()
    least, most = needs(small, constants), needs(large, constants)
    assert least.gets_s > 0  # more agents write smaller files, and may read these by fewer whole chunks
    for name in ("agents", "agent_cores", "compactor_cores", "stored_bytes", "puts_s"):
        assert getattr(most, name) >= getattr(least, name) * (1 - 1e-9), name
        assert getattr(least, name) > 0
    for cheap, dear in zip(bills(small, constants, listed), bills(large, constants, listed), strict=True):
        if cheap.name == "low latency":  # a larger load may be too much for the metastore, and cheaper in the bucket
            continue
        least_total, most_total = (bill.total - bill.parts.get("requests", 0) for bill in (cheap, dear))
        assert most_total >= least_total * (1 - 1e-9)  # PUTs are compared above, and GETs may become fewer
        assert min(cheap.parts.values()) >= 0


def test_groups_by_hand() -> None:
    """1,000 members make 200 commits and 200 heartbeats a second."""
    groups = group_needs(1_000, 5.0, ROUND)
    assert (groups.commits_s, groups.wal_bytes_s) == (200, 60_000)
    assert (groups.agent_cores, groups.postgres_cores) == (pytest.approx(0.3), pytest.approx(0.4))
    without, with_groups = (needs(Workload(write_mib_s=1, group_members=n), ROUND) for n in (0, 1_000))
    assert with_groups.agent_cores - without.agent_cores == pytest.approx(0.3)
    assert with_groups.postgres_cores - without.postgres_cores == pytest.approx(0.4)
    assert with_groups.wal_bytes_s - without.wal_bytes_s == pytest.approx(60_000)


def test_the_measured_points_come_out_again() -> None:
    constants = measured()
    for kib, seconds in ((1126 / 1024, 35.5), (64, 3.6)):
        assert compaction_s_per_gb(Workload(write_mib_s=1, batch_kib=kib), constants) == pytest.approx(seconds)
    assert constants.line("agent_us_per_request", 65_536) == 134
    thousand = constants.line("postgres_us_per_commit", 1_000, "extents", "us")
    assert thousand == pytest.approx(26_127 * 2, rel=0.1), "a line overrates very wide commits by a factor of two"


def test_every_constant_names_the_run_that_measured_it() -> None:
    for name, entry in measured().entries.items():
        result = entry["result"]
        if not result.startswith("https://"):
            page = (REPOSITORY / "docs" / "results" / result).read_text(encoding="utf-8")
            assert entry["command"].removesuffix(", 4 readers").split(" --")[0] in page, name
    for name, entry in prices().entries.items():
        assert name in ("currency", "read_on") or "https://" in entry["source"], name


def test_defaults_are_those_of_the_settings() -> None:
    workload, settings = Workload(write_mib_s=1), Settings()
    assert workload.linger_ms == settings.linger_ms
    assert workload.flush_bytes == settings.flush_bytes
    assert workload.early_flushes_s == flush_limits(Settings(bucket="s3://b/p")).rate
    assert workload.feed_poll_ms == settings.feed_poll_interval_ms
    assert settings.group_consumer_heartbeat_interval_ms == HEARTBEAT_SECONDS * 1000


def test_the_command_prints_both_forms(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["cost", "--write-mib-s", "100", "--fanout", "3", "--retention-days", "7"]) == 0
    page = capsys.readouterr().out
    assert "MANAGED" in page
    assert "PUTs per second" in page
    assert "early flushes: at most 394 of" in page
    assert "█" * BAR_WIDTH in page
    assert main(["cost", "--write-mib-s", "100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["early_flushes_at_most"] == pytest.approx(394.2)
    for parts in document["monthly"].values():
        assert parts["total"] == pytest.approx(sum(parts.values()) - parts["total"])
    (tmp_path / "prices.toml").write_text("currency = 'EUR'\n")
    assert main(["cost", "--write-mib-s", "100", "--prices", str(tmp_path / "prices.toml")]) != 0
    assert "no such value: name=machine_hour" in capsys.readouterr().err


@pytest.mark.requirement("X15")
def test_each_cloud_has_prices_with_a_date_and_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    for cloud, name in CLOUDS.items():
        found = prices(cloud=cloud)
        assert found.currency == "USD"
        assert found.read_on >= "2026-11-23"
        for price in ("cores_per_machine", "machine_hour", "object_gb_month", "put_1000", "get_1000", "zone_gb"):
            assert found.entries[price]["source"], f"{name} {price}"
        assert main(["cost", "--write-mib-s", "10", "--fanout", "3", "--cloud", cloud]) == 0
        shown = capsys.readouterr().out
        assert f"prices of {found.read_on}" in shown
        assert ("Kafka, managed" in shown) is found.has_managed_kafka
    assert [prices(cloud=cloud).has_managed_kafka for cloud in CLOUDS] == [True, False, False]


def test_bars_are_in_proportion() -> None:
    assert [len(bar(value, 40)) for value in (40, 20, 0.1)] == [40, 20, 1]


def test_a_missing_value_is_named() -> None:
    with pytest.raises(InvalidError, match="no such value: name=nothing field=value"):
        measured().value("nothing")


@pytest.mark.parametrize(
    ("agents", "zones", "shards"), [(3, 3, 8), (6, 3, 8), (7, 3, 16), (12, 1, 64), (75, 3, 128), (10_000, 3, 1024)]
)
def test_a_zone_has_four_commit_shards_for_each_agent(agents: int, zones: int, shards: int) -> None:
    assert commit_shards(agents, zones) == shards


def test_a_poll_costs_more_with_more_commit_shards() -> None:
    """Each agent polls 100 times a second."""
    costs = {name: dict(fields) for name, fields in measured().entries.items()}
    costs["postgres_us_per_feed_poll"] = costs["postgres_us_per_polled_shard"] = {"value": 0}
    load = Workload(write_mib_s=2_000, feed_poll_ms=10)
    free = needs(load, Constants(costs))
    costs["postgres_us_per_feed_poll"], costs["postgres_us_per_polled_shard"] = {"value": 50}, {"value": 2}
    polled = needs(load, Constants(costs))
    assert polled.commit_shards > 8
    a_poll = 50e-6 + 2e-6 * (polled.commit_shards - 8)
    assert polled.postgres_cores - free.postgres_cores == pytest.approx(polled.agents * 100 * a_poll)


@pytest.mark.requirement("X13")
def test_small_files_by_hand() -> None:
    """1 MiB/s in batches of 64 KiB: 16 commits a second, and a moved file every 32 s instead of 30 PUTs a second."""
    load = Workload(write_mib_s=1, batch_kib=64, fanout=1, retention_days=1, partitions=1, low_latency=True)
    need = needs(load, ROUND)
    assert need.inline_bytes_s == MIB
    assert need.puts_s == pytest.approx(1 / 32 + 2 / 64)
    assert need.early_flushes_s == 0
    assert need.wal_bytes_s == pytest.approx(16 * 500 + MIB)
    assert need.postgres_cores == pytest.approx(16 * 0.001 + MIB / GB * 10)
    assert inline_zone_bytes_s(need, load) == pytest.approx(MIB * 2 / 3 * 4), "in, out to a merge, out to two readers"


def test_large_files_and_much_load_go_into_the_bucket_at_once() -> None:
    for load in (
        Workload(write_mib_s=1, batch_kib=512, low_latency=True),
        Workload(write_mib_s=17, batch_kib=64, low_latency=True),
        Workload(write_mib_s=1, batch_kib=64),
    ):
        assert needs(load, measured()).inline_bytes_s == 0


def test_small_files_are_cheaper_than_their_puts_and_than_kafka() -> None:
    found = {bill.name: bill.total for bill in bills(Workload(write_mib_s=1), measured(), prices())}
    assert found["low latency"] < 0.9 * found["Kafka, three zones"] < found["Headrace"]


def test_low_latency_is_hinted_at_where_it_is_cheaper_and_off() -> None:
    def hint(load: Workload) -> str:
        return low_latency_hint(load, needs(load, measured()), bills(load, measured(), prices()))

    assert hint(Workload(write_mib_s=1)).startswith("files are about 34 KiB: low.latency.enable would save 299 of 861")
    assert hint(Workload(write_mib_s=1, low_latency=True)) == hint(Workload(write_mib_s=100)) == ""
