"""Each bound on what clients make agents and Postgres keep has a test that fails when only that bound is taken out.

As test_reverted_fixes.py. The names begin with what is bounded.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.test_reverted_fixes import Fix, fails_without, is_there

TOKENS = "tests/agent/access/admin/test_delegation_tokens.py"
GROUPS = "tests/agent/groups/test_new_groups.py"
RECORDS = "tests/metastore/test_record_sizes.py"
ROWS = "tests/agent/limits/test_client_rows.py"
OUTSIDE = "tests/faults/test_counted_memory.py::test_names_that_agents_key_something_by"
BOUNDS = {
    "memory: an entry counts its bytes": Fix(
        "agent/limits/client_memory.py",
        "self.in_use_bytes + size <= self._limit and",
        "True and",
        "tests/agent/limits/test_client_memory.py",
    ),
    "decisions: a name has a largest length": Fix(
        "agent/access/authorization/access.py",
        "lambda key, _: text_bytes(key[3]), NAME_BYTES_MAX)",
        "lambda key, _: 0, NAME_BYTES_MAX)",
        "tests/agent/access/authorization/test_acl_index.py",
    ),
    "decisions: seen from outside": Fix(
        "agent/access/authorization/access.py",
        "lambda key, _: text_bytes(key[3]), NAME_BYTES_MAX)",
        "lambda key, _: 0, NAME_BYTES_MAX)",
        OUTSIDE,
    ),
    "log lines: seen from outside": Fix("storage/repetition.py", "digest = digest_of(key)", "digest = key", OUTSIDE),
    "log lines: repetitions keep digests": Fix(
        "storage/repetition.py", "digest = digest_of(key)", "digest = key", "tests/storage/test_repetition.py"
    ),
    "log lines: a value has a largest length": Fix(
        "cli/process/log_length.py",
        "value if len(text) <= VALUE_CHARACTERS else",
        "value if True else",
        "tests/cli/process/test_log_length.py",
    ),
    "quotas: a client id counts its bytes": Fix(
        "agent/access/quotas/enforcement.py",
        "lambda key, _: text_bytes(key.user, key.client_id)",
        "lambda key, _: 0",
        "tests/agent/access/quotas/test_enforcement.py::test_long_names_share_one_bucket_and_fill_no_report",
    ),
    "quotas: a report has a largest size": Fix(
        "agent/access/quotas/sharing.py",
        "if len(entry) < left:",
        "if True:",
        "tests/agent/access/quotas/test_enforcement.py::test_long_names_share_one_bucket_and_fill_no_report",
    ),
    "fetch sessions: a topic name counts its bytes": Fix(
        "agent/fetch/sessions.py",
        "text_bytes(topic) // NAME_BYTES if isinstance(topic, str) else 0",
        "0",
        "tests/agent/fetch/test_sessions.py",
    ),
    "tokens: renewers": Fix(
        "agent/access/admin/delegation_tokens.py", "is_too_large(owner, renewers):", "False:", TOKENS
    ),
    "tokens: of one owner": Fix("agent/access/admin/delegation_tokens.py", ">= self._most_of_an_owner", "< 0", TOKENS),
    "records: in SQL": Fix(
        "metastore/postgres/cluster/metadata_log.sql", "IF v_bytes IS NOT NULL THEN", "IF false THEN", RECORDS
    ),
    "records: in Python": Fix("metastore/log/record_sizes.py", "if size > RECORD_BYTES_MAX:", "if False:", RECORDS),
    "records: one that removes something may be larger": Fix(
        "metastore/postgres/cluster/metadata_log.sql", "AND NOT is_removal_record(record)", "", RECORDS
    ),
    "groups: a new id": Fix(
        "agent/groups/names.py", "return len(group_id) > GROUP_ID_BYTES_MAX // 4 and", "return False and", GROUPS
    ),
    "groups: a stored one is served": Fix(
        "agent/groups/new_groups.py", " or await self._is_stored(group_id):", ":", GROUPS
    ),
    "groups: a rack counts": Fix(
        "agent/groups/consumer/coordinator.py", "request.instance_id, request.rack_id,", "request.instance_id,", GROUPS
    ),
    "groups: a promised id counts": Fix(
        "agent/groups/classic/group.py", "PROMISED_BYTES + text_bytes(member_id)", "PROMISED_BYTES", GROUPS
    ),
    "rows: a new transactional id": Fix(
        "agent/transactions/init_producer_id.py",
        "return self._rows is not None and not await self._rows.has_room(limit)",
        "return False",
        ROWS,
    ),
    "rows: a stored transactional id is never refused": Fix(
        "agent/transactions/init_producer_id.py",
        " and not await self._transactions.find_transactions([transactional_id]):",
        ":",
        ROWS,
    ),
    "rows: a new offset": Fix(
        "agent/groups/offsets/group_offsets.py", "if offset.partition_key in known]", "if True]", GROUPS
    ),
    "rows: a group's next offset is never refused": Fix(
        "agent/groups/offsets/group_offsets.py", "if offset.partition_key in known]", "if False]", GROUPS
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDS)
def test_a_test_fails_without_the_bound(name: str, tmp_path: Path) -> None:
    fails_without(BOUNDS[name], name, tmp_path)


@pytest.mark.parametrize("name", BOUNDS)
def test_the_bound_is_there(name: str) -> None:
    is_there(BOUNDS[name])
