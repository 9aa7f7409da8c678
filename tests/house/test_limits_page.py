"""docs/operate/LIMITS.md names every setting that bounds clients, with its default."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.agent.client_pattern import PATTERN_CHARACTERS_MAX
from headrace.agent.fetch.sessions import CAPACITY
from headrace.agent.groups.held_groups import GROUPS_MAX
from headrace.agent.produce.pending import LEADER_ONLY_TIMEOUT_MS
from headrace.agent.produce.validate import LOOP_WORK
from headrace.config.client_limits import ClientLimits
from headrace.config.declared import declared
from headrace.config.process_settings import ProcessSettings
from headrace.metastore.audit_trail.objects import BLOCK_BYTES_MAX
from headrace.storage.records.check_records import ITEMS_MAX, largest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operate" / "LIMITS.md").read_text(encoding="utf-8")
UNITS = {"MiB": 1 << 20, "KiB": 1 << 10, "minutes": 60_000, "seconds": 1_000}
ROW = re.compile(r"^\| `([a-z.]+)` \| ([^|]+) \|", re.MULTILINE)


def _number(text: str) -> int | None:
    """`64 MiB` or `10,000`; 2^31-1 for `no limit`."""
    if text.strip() == "no limit":
        return 2**31 - 1
    match = re.match(r"([\d,]+)(?: ([A-Za-z]+))?", text.strip())
    return int(match[1].replace(",", "")) * UNITS.get(match[2] or "", 1) if match else None


def test_every_limit_has_a_row_with_its_default() -> None:
    rows = dict(ROW.findall(PAGE))
    added = set(ClientLimits.__struct_encode_fields__) - set(ProcessSettings.__struct_encode_fields__)
    assert set(rows) >= added
    for name, default in rows.items():
        assert _number(default) == declared()[name].default, name


FIXED = re.compile(r"^\| fixed \| ([^|]+) \| ([^|]+) \|", re.MULTILINE)


def test_fixed_limits_are_those_of_the_code() -> None:
    rows = {what.strip(): _number(limit) for limit, what in FIXED.findall(PAGE)}
    assert list(rows.values()) == [
        largest(0).unpacked_bytes,
        ITEMS_MAX,
        LEADER_ONLY_TIMEOUT_MS,
        GROUPS_MAX,
        CAPACITY,
        BLOCK_BYTES_MAX,
        PATTERN_CHARACTERS_MAX,
    ], rows
    assert f"{LOOP_WORK.items:,} records and headers and {LOOP_WORK.unpacked_bytes >> 20} MiB" in PAGE


def test_limits_of_the_cluster_have_rows() -> None:
    assert {"max.topics", "max.partitions"} <= set(dict(ROW.findall(PAGE)))
