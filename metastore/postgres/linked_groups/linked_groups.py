"""Linked groups in Postgres.

Place: implements metastore.api.linked_groups.LinkedGroupApi, under the workers of links, the active controller, agents
and tools.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.linked_groups import FoundGroup, GroupOutcome, LinkedGroupApi, SourceOffset
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement

_REPORT = Statement("report_linked_groups", writes=True)
_COPY_OFFSETS = Statement("copy_group_offsets", writes=True)


class PostgresLinkedGroups(PostgresNoun):
    """Implements metastore.api.linked_groups.LinkedGroupApi."""

    note_groups_problem = calls(LinkedGroupApi.note_groups_problem, writes=True)
    note_group_refusals = calls(LinkedGroupApi.note_group_refusals, writes=True)
    linked_groups = calls(LinkedGroupApi.linked_groups, writes=False)
    asked_groups = calls(LinkedGroupApi.asked_groups, writes=False)
    copied_partitions = calls(LinkedGroupApi.copied_partitions, writes=False)
    ask_last_offsets = calls(LinkedGroupApi.ask_last_offsets, writes=True)
    last_offsets = calls(LinkedGroupApi.last_offsets, writes=False)

    async def report_linked_groups(self, token: JobToken, link: str, groups: Sequence[FoundGroup]) -> None:
        groups = list(groups)
        await _REPORT.row(
            self.pool,
            job_id=token.job_id,
            epoch=token.epoch,
            link=link,
            group_ids=[each.group_id for each in groups],
            kinds=[each.kind for each in groups],
            states=[each.state for each in groups],
        )

    async def copy_group_offsets(
        self, token: JobToken, link: str, group_id: str, answers: int, offsets: Sequence[SourceOffset]
    ) -> GroupOutcome:
        ordered = sorted(offsets)
        (outcome,) = await _COPY_OFFSETS.row(
            self.pool,
            job_id=token.job_id,
            epoch=token.epoch,
            link=link,
            group_id=group_id,
            answers=answers,
            keys=[each.partition_key for each in ordered],
            offsets=[each.offset for each in ordered],
            leader_epochs=[each.leader_epoch for each in ordered],
            metadata=[each.metadata.encode() for each in ordered],
        )
        return GroupOutcome(outcome)
