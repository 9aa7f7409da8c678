"""docs/operate/LIMITS.md names every limit of the code: settings with their defaults, fixed ones, parts of memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from headrace.agent.access.sasl.passwords import MESSAGE_BYTES_MAX
from headrace.agent.fetch.index.shard_interest import SEEN_MAX
from headrace.agent.fetch.sessions import CAPACITY
from headrace.agent.groups.claims import DOUBTS_MAX
from headrace.agent.groups.held_groups import GROUPS_MAX
from headrace.agent.groups.streams.configured_topology import TASKS_MAX
from headrace.agent.groups.streams.internal_topics import ERRORS_MAX
from headrace.agent.limits.client_rows import COMMITTED_OFFSETS, PRODUCER_STATES, TRANSACTIONAL_IDS
from headrace.agent.limits.client_texts import ID_BYTES_MAX
from headrace.agent.produce.requests import LEADER_ONLY_TIMEOUT_MS
from headrace.agent.produce.validate import LOOP_WORK
from headrace.cli.process.http_server import WAIT_SECONDS
from headrace.config.declared import declared
from headrace.config.memory_budget import REMEMBERED_BYTES, SHARE_RECORDS_BYTES, SHARE_SESSIONS_BYTES, memory_budget
from headrace.config.patterns import PATTERN_CHARACTERS_MAX
from headrace.config.settings import Settings
from headrace.metastore.audit_trail import BLOCK_BYTES_MAX
from headrace.metastore.log.delegation_tokens import PRINCIPAL_BYTES_MAX, RENEWERS_MAX
from headrace.metastore.log.records import RECORD_BYTES_MAX
from headrace.storage.records.check_records import ITEMS_MAX, largest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operate" / "LIMITS.md").read_text(encoding="utf-8")
UNITS = {"MiB": 1 << 20, "KiB": 1 << 10, "minute": 60_000, "minutes": 60_000, "seconds": 1_000}
COUNTED = re.compile(r"""(?:limits_reached\.labels|on_limit|metrics\.refused)\("([a-z.]+)"\)""")
ROWS_OF_CLIENTS = {TRANSACTIONAL_IDS, PRODUCER_STATES, COMMITTED_OFFSETS}
PART = re.compile(r"""REMEMBERED_BYTES\["(\w+)"\]""")
SHOWN = re.compile(r"""^ *(?:return \{|in_use = \{)?"(\w+)": lambda: """, re.MULTILINE)
CACHES = {
    "metastore/log/scram_keys.py",  # credentials of the metadata log; its records have a limit
    "metastore/postgres/sql_files.py",  # files of this package
    "protocol/client/messages.py",  # classes of APIs and versions
    "protocol/entity_reader.py",  # classes of APIs and versions
    "protocol/answers.py",
    "protocol/typed.py",
}
ROW = re.compile(r"^\| `([a-z.]+)` \| ([^|]+) \|", re.MULTILINE)


def _number(text: str) -> int | None:
    """`64 MiB` or `10,000`; 2^31-1 for `no limit`."""
    if text.strip() == "no limit":
        return 2**31 - 1
    match = re.match(r"([\d,]+)(?: ([A-Za-z]+))?", text.strip())
    return int(match[1].replace(",", "")) * UNITS.get(match[2] or "", 1) if match else None


def _bounds_clients(annotation: Any) -> bool:
    info = msgspec.inspect.type_info(annotation)
    return isinstance(info, msgspec.inspect.Metadata) and (info.extra or {}).get("bounds") == "clients"


def test_every_limit_has_a_row_with_its_default() -> None:
    rows = dict(ROW.findall(PAGE))
    fields = msgspec.structs.fields(Settings)
    added = {f.encode_name for f in fields if _bounds_clients(f.type)}
    assert len(added) > 10
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
        ID_BYTES_MAX,
        TASKS_MAX,
        ERRORS_MAX,
        GROUPS_MAX,
        DOUBTS_MAX,
        SEEN_MAX,
        CAPACITY,
        SHARE_SESSIONS_BYTES,
        SHARE_RECORDS_BYTES,
        BLOCK_BYTES_MAX,
        PATTERN_CHARACTERS_MAX,
        RENEWERS_MAX,
        PRINCIPAL_BYTES_MAX,
        RECORD_BYTES_MAX,
        MESSAGE_BYTES_MAX,
        WAIT_SECONDS * 1_000,
        1,
    ], rows
    assert f"{LOOP_WORK.items:,} records and headers and {LOOP_WORK.unpacked_bytes >> 20} MiB" in PAGE


def test_limits_of_the_cluster_have_rows() -> None:
    of_the_cluster = {name for name in declared() if name.startswith("max.") or name.endswith(".max.per.owner")}
    assert {"max.topics", "max.partitions", "max.committed.offsets"} <= of_the_cluster
    assert of_the_cluster - set(dict(ROW.findall(PAGE))) - OF_A_BATCH == set()


OF_A_BATCH: set[str] = set()


def test_every_limit_that_is_counted_is_on_the_page() -> None:
    """headrace_limit_reached_total: its label is a name of the first column, or in the text of a row."""
    counted = {name for path in (ROOT / "agent").rglob("*.py") for name in COUNTED.findall(path.read_text("utf-8"))}
    assert {"group.memory.bytes", "delegation.token.renewers", "fetch.session.max.partitions"} <= counted
    assert {name for name in counted | ROWS_OF_CLIENTS if f"`{name}`" not in PAGE} == set()


def test_what_clients_make_an_agent_remember_has_a_part_with_a_limit() -> None:
    """Each ClientMemory has its limit from the memory budget, and each part of the budget is shown by some code."""
    sources = {path: path.read_text("utf-8") for path in (ROOT / "agent").rglob("*.py")}
    memories = [path for path, text in sources.items() if "ClientMemory(" in text or "ClientMemory[" in text]
    assert len(memories) > 5
    used = {name for text in sources.values() for name in PART.findall(text)}
    assert used == set(REMEMBERED_BYTES)
    for path in memories:
        assert path.name == "client_memory.py" or PART.search(sources[path]) or "decisions" in sources[path], path
    of_every_process = (ROOT / "cli" / "process" / "shell.py").read_text("utf-8")
    shown = {name for text in (*sources.values(), of_every_process) for name in SHOWN.findall(text)}
    assert set(memory_budget(Settings())) - {"python"} <= shown, "a part that no code counts"


def test_no_cache_of_the_standard_library_is_filled_by_clients() -> None:
    """functools.lru_cache counts entries, not bytes; of functools.cache not even these."""
    found = {
        (str(path.relative_to(ROOT)), line.strip())
        for folder in ("agent", "protocol", "metastore")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"lru_cache|functools\.cache\b|^@cache\b", line) and not line.startswith(("from", "import"))
    }
    assert {where for where, _ in found} == CACHES, found
