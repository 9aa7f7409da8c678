"""The memory budget: what the settings add up to, and when a process says that it is too much."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.cli.process.serve import container_limit_bytes
from headrace.config.memory_budget import MIB, memory_budget, over_container
from headrace.config.settings import Settings


def test_each_part_follows_its_setting() -> None:
    small = Settings(
        buffer_memory_bytes=32 * MIB,
        request_memory_bytes=8 * MIB,
        reply_memory_bytes=9 * MIB,
        cache_bytes=10 * MIB,
        group_memory_bytes=11 * MIB,
        upload_parallelism=1,
        flush_bytes=MIB,
        socket_request_max_bytes=2 * MIB,
    )
    parts = memory_budget(small)
    assert parts["produce_requests"] == 32 * MIB
    assert parts["uploads"] == 3 * MIB
    assert [parts[name] // MIB for name in ("requests", "replies", "fetch_cache", "groups")] == [8, 9, 10, 11]
    assert "compaction" not in parts


def test_replays_are_read_ahead_on_s3() -> None:
    assert memory_budget(Settings(bucket="s3://bucket"))["read_ahead"] == 96 * MIB
    assert "96 MiB with a bucket on S3" in _page()


def test_a_compactor_has_no_clients() -> None:
    assert set(memory_budget(Settings(process_roles="compactor"))) == {"python", "allocator", "compaction"}


def _page() -> str:
    return (Path(__file__).parents[2] / "docs" / "operate" / "LIMITS.md").read_text(encoding="utf-8")


def test_the_page_has_the_sum_of_the_defaults() -> None:
    parts = memory_budget(Settings())
    page = _page()
    for part, size in parts.items():
        assert re.search(rf"^\| {size // MIB} MiB \| `{part}` \| ", page, re.MULTILINE), part
    assert f"| {sum(parts.values()) // MIB} MiB | all | |" in page


def test_the_page_has_what_connections_with_tls_take() -> None:
    tls = Settings(listeners="SSL://127.0.0.1:9092", ssl_keystore_location="key.pem")
    assert f"(`max.unauthenticated.connections`): {memory_budget(tls)['connections'] // MIB} MiB |" in _page()
    more = memory_budget(tls)["connections"] - memory_budget(Settings())["connections"]
    assert more > 200 * MIB
    fitting = sum(memory_budget(Settings()).values())
    assert over_container(Settings(), fitting) is None
    warning = over_container(tls, fitting)
    assert warning is not None
    assert "connections" in warning, "max.connections is one of the settings to lower"


def test_the_defaults_fit_the_charts_limit() -> None:
    assert over_container(Settings(), 1536 * MIB) is None


@pytest.mark.parametrize("processes", [1, 2])
def test_a_container_that_is_too_small_is_named_with_what_to_change(processes: int) -> None:
    warning = over_container(Settings(), 1024 * MIB, processes)
    assert warning is not None
    assert f"limit=1024 MiB processes={processes}; lower the settings of produce_requests, uploads," in warning
    assert over_container(Settings(), None, processes) is None


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [
        ("memory.max", "1610612736\n", 1536 * MIB),
        ("memory.max", "max\n", None),
        ("memory/memory.limit_in_bytes", "1610612736\n", 1536 * MIB),
        ("memory/memory.limit_in_bytes", f"{2**63 - 4096}\n", None),
        ("other", "", None),
    ],
)
def test_the_limit_of_both_versions_of_control_groups(file: str, text: str, limit: int | None, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert container_limit_bytes(tmp_path) == limit
