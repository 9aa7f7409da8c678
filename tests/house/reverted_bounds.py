"""The bounds on what clients make agents and Postgres keep, each with what takes it out.

The names begin with what is bounded.
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from headrace.agent.access.admin import delegation_tokens
from headrace.agent.access.admin.delegation_tokens import DelegationTokens
from headrace.agent.access.authorization import access
from headrace.agent.access.quotas import enforcement, service
from headrace.agent.fetch import sessions
from headrace.agent.groups import claims
from headrace.agent.groups.claims import NewGroups
from headrace.agent.groups.classic import group
from headrace.agent.groups.consumer import coordinator
from headrace.agent.groups.consumer.members import ConsumerHeartbeat
from headrace.agent.groups.offsets import group_offsets
from headrace.agent.limits import client_texts
from headrace.agent.limits.client_memory import ClientMemory
from headrace.agent.transactions import producer_requests
from headrace.agent.transactions.producer_requests import InitProducerId
from headrace.cli.process import logs
from headrace.metastore.log import records as record_sizes
from headrace.metastore.postgres.cluster import cluster
from headrace.storage import repetition
from tests.house.reversal import Reversal, with_attribute, with_value
from tests.patch import Patch

TOKENS = "tests/agent/access/admin/test_delegation_tokens.py"
GROUPS = "tests/agent/groups/test_new_groups.py"
RECORDS = "tests/metastore/test_record_sizes.py"
ROWS = "tests/agent/limits/test_client_rows.py"
REPORT = "tests/agent/access/quotas/test_enforcement.py::test_long_names_share_one_bucket_and_fill_no_report"
OUTSIDE = "tests/faults/test_counted_memory.py::test_names_that_agents_key_something_by"


async def _no(*_: object) -> bool:
    return False


def _no_bytes(*_: object) -> int:
    return 0


def _counts_entries_only(self: ClientMemory[object, object], size: int) -> bool:
    return len(self) < self._count_max


def _reports_of_any_size(patch: Patch) -> None:
    right = service.encode_report

    def encode(report: service.Report) -> str:
        with mock.patch.object(service, "REPORT_CHARACTERS", 1 << 40):
            return right(report)

    for module in (service, service):
        patch.replace(module, "encode_report", encode)


def _records_of_any_size(patch: Patch) -> None:
    for module in (record_sizes, cluster):
        patch.replace(module, "refuse_large", lambda records: None)


def _ids_of_any_length(patch: Patch) -> None:
    for module in (client_texts, claims, producer_requests):
        patch.replace(module, "is_long", lambda group_id: False)


def _racks_count_nothing(patch: Patch) -> None:
    right = coordinator._member_bytes

    def without_rack(request: ConsumerHeartbeat) -> int:
        return right(replace(request, rack_id=None))

    patch.replace(coordinator, "_member_bytes", without_rack)


NAMES_OF_ANY_LENGTH = with_attribute(access, "text_bytes", _no_bytes)
WHOLE_KEYS = with_attribute(repetition, "digest_of", lambda key: key)
REVERSALS = {
    "memory: an entry counts its bytes": Reversal(
        with_attribute(ClientMemory, "_fits", _counts_entries_only), "tests/agent/limits/test_client_memory.py"
    ),
    "decisions: a name has a largest length": Reversal(
        NAMES_OF_ANY_LENGTH, "tests/agent/access/authorization/test_acl_index.py"
    ),
    "decisions: seen from outside": Reversal(NAMES_OF_ANY_LENGTH, OUTSIDE),
    "log lines: seen from outside": Reversal(WHOLE_KEYS, OUTSIDE),
    "log lines: repetitions keep digests": Reversal(WHOLE_KEYS, "tests/storage/test_repetition.py"),
    "log lines: a value has a largest length": Reversal(
        with_attribute(logs, "_shortened", lambda value: value), "tests/cli/process/test_log_length.py"
    ),
    "quotas: a client id counts its bytes": Reversal(with_attribute(enforcement, "_name_bytes", _no_bytes), REPORT),
    "quotas: a report has a largest size": Reversal(_reports_of_any_size, REPORT),
    "fetch sessions: a topic name counts its bytes": Reversal(
        with_attribute(sessions, "_weight", lambda ref: 1), "tests/agent/fetch/test_sessions.py"
    ),
    "tokens: renewers": Reversal(
        with_attribute(delegation_tokens, "is_too_large", lambda owner, renewers: False), TOKENS
    ),
    "tokens: of one owner": Reversal(
        with_attribute(DelegationTokens, "_most_of_an_owner", property(lambda self: 2**31)), TOKENS
    ),
    "records: in SQL": Reversal(with_value("record_bytes_max() RETURNS int", "2147483647"), RECORDS),
    "records: in Python": Reversal(_records_of_any_size, RECORDS),
    "records: one that removes something may be larger": Reversal(
        with_value("is_removal_record(p_record bytea) RETURNS boolean", "false"), RECORDS
    ),
    "groups: a new id": Reversal(_ids_of_any_length, GROUPS),
    "groups: a stored one is served": Reversal(with_attribute(NewGroups, "_is_stored", _no), GROUPS),
    "groups: a rack counts": Reversal(_racks_count_nothing, GROUPS),
    "groups: a promised id counts": Reversal(with_attribute(group, "text_bytes", _no_bytes), GROUPS),
    "rows: a new transactional id": Reversal(with_attribute(InitProducerId, "_is_full", _no), ROWS),
    "rows: a stored transactional id is never refused": Reversal(
        with_attribute(InitProducerId, "_is_stored", _no), ROWS
    ),
    "rows: a new offset": Reversal(
        with_attribute(group_offsets, "_of_same_partitions", lambda offsets, stored: offsets), GROUPS
    ),
    "rows: a group's next offset is never refused": Reversal(
        with_attribute(group_offsets, "_of_same_partitions", lambda offsets, stored: []), GROUPS
    ),
}
