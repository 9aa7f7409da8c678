"""Each key of an advisory lock has one meaning: the keys are declared in one file, and these functions take them."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from headrace.metastore.postgres.sql_files import function_files, query_files
from tests.metastore.sql_sources import source_of

ROOT = Path(__file__).parents[2]
DECLARED = "advisory_keys"
KEYS = {
    "shard_lock": {"lock_shards"},
    "producer_id_lock": {"allocate_producer_ids", "merge_producer_id_blocks"},
    "life_lock": {"assert_life", "begin_life", "grow_commit_shards"},
    "bulk_writer_lock": {"decide_bulk_write"},
}
"""Advisory keys: the files that take it, all for the one purpose that advisory_keys.sql says."""
TAKEN = re.compile(r"pg_(?:try_)?advisory_(?:xact_)?(?:un)?lock(?:_shared)?(?:_all)?\s*\(\s*([^,)]*)")
IN_PYTHON = {"metastore/postgres/migrate.py": "SELECT pg_advisory_xact_lock(%s, %s)"}
"""The process that migrates: no function is installed before it."""


def keys_of(sources: dict[str, str]) -> dict[str, set[str]]:
    """Return the keys by the text of the first key: the files with a lock of it."""
    found = defaultdict(set)
    for name, text in sources.items():
        for key in TAKEN.findall(re.sub("--.*", "", text)):
            found[key.removesuffix("(")].add(name)
    return found


def sources() -> dict[str, str]:
    files = [*function_files(), *query_files().values()]
    return {file.name: file.text for file in files}


def test_each_key_is_declared_and_has_one_purpose() -> None:
    assert keys_of(sources()) == KEYS


def test_declared_keys_are_different_numbers() -> None:
    numbers = re.findall(
        r"FUNCTION (\w+)\(\) RETURNS int\nLANGUAGE sql IMMUTABLE PARALLEL SAFE\nRETURN (\d+);", source_of(DECLARED)
    )
    assert {name for name, _ in numbers} == KEYS.keys()
    assert len({number for _, number in numbers} | {"7200"}) == len(KEYS) + 1, "7200 is the key of migrations"


def test_a_second_purpose_and_a_bare_number_are_refused() -> None:
    """As it was: emptying slots took the key of the life."""
    shared = {"rotate_log_slots": "OR NOT pg_try_advisory_xact_lock(life_lock(), 0);"}
    bare = {"rotate_log_slots": "PERFORM pg_advisory_xact_lock(7203, 0);"}
    for planted in (shared, bare):
        assert keys_of({**sources(), **planted}) != KEYS


def test_python_takes_advisory_locks_only_to_migrate() -> None:
    folders = ("agent", "cli", "client", "compactor", "metastore", "protocol", "scan", "spark", "storage", "tables")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    taking = {name for name, text in found.items() if "advisory_lock" in text or "advisory_xact" in text}
    assert taking == IN_PYTHON.keys()
    assert all(text in found[name] for name, text in IN_PYTHON.items())
