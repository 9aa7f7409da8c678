"""The proofs of the lifecycle of remote segments fail when it is wrong: each named bug is planted and caught."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.compactor import test_segments as proofs
from tests.compactor.segment_world import SegmentWorld
from tests.compactor.test_lost_swaps import check_every_order
from tests.metastore.sql_sources import plant

Proof = Callable[[SegmentWorld], Awaitable[None]]

BUGS: dict[str, tuple[str, str, str, Proof]] = {
    "a tombstone before the object is gone": (
        "release_segments",
        "SET reference = reference_awaits_object() FROM spare",
        "SET reference = reference_released() FROM spare",
        proofs.test_nothing_is_finished_before_its_object_is_gone,
    ),
    "a higher epoch is ignored": (
        "start_segments",
        "s.epoch > p_epoch AND",
        "false AND",
        proofs.test_a_lower_epoch_is_refused_after_a_higher_one,
    ),
    "a deleted key is used again": (
        "start_segments",
        "s.epoch = p_epoch AND s.file_id <> p_file_id\n        AND (",
        "false AND (",
        proofs.test_a_key_that_is_being_deleted_is_not_started_again,
    ),
    "the marker is never removed": (
        "delete_partitions",
        "tombstoned_at IS NULL AND state = partition_delete_finished()",
        "false",
        proofs.test_the_deletion_of_a_partition,
    ),
    "the marker goes before the tombstones": (
        "delete_partitions",
        "                                WHERE s.topic_id = m.topic_id AND s.partition_index = m.partition_index)\n",
        "                                WHERE false)\n",
        proofs.test_the_deletion_of_a_partition,
    ),
    "a zombie swaps": (
        "swap_extents",
        "PERFORM assert_job(p_job_id, p_epoch);",
        "",
        proofs.test_another_lease_during_an_upload,
    ),
    "one key's release deletes the object of all": (
        "release_segments",
        "CASE WHEN f.segments = r.keys AND file_is_unneeded(f, p_before) THEN file_deleting()",
        "CASE WHEN true THEN file_deleting()",
        proofs.test_an_object_goes_with_its_last_reference,
    ),
    "a reference is released twice": (
        "release_segments",
        "f.segments - r.keys",
        "f.segments - 2 * r.keys",
        proofs.test_an_object_goes_with_its_last_reference,
    ),
    "what is replaced goes under a new key": (
        "end_segments",
        "ELSIF p_cause IN (cause_replaced(), cause_lost()) THEN",
        "ELSIF false THEN",
        proofs.test_a_replaced_segment_goes_under_its_own_key,
    ),
    "a live key gets a tombstone": (
        "release_segments",
        "AND s.tombstoned_at IS NULL AND s.live_extents = 0 AND s.reference = reference_released()",
        "AND s.tombstoned_at IS NULL",
        proofs.test_a_live_key_stays_although_one_with_a_higher_epoch_is_lost,
    ),
    "its own tombstone comes first": (
        "release_segments",
        "ORDER BY topic_id, partition_index, end_offset, epoch)] AS log_offset",
        "ORDER BY topic_id, partition_index, end_offset, epoch DESC)] AS log_offset",
        proofs.test_a_deletion_takes_all_keys_of_its_end_offset,
    ),
    "another job's reservation is good enough": (
        "settle_uploads",
        "AND r.epoch = p_epoch AND r.file_id = p_file_id",
        "AND r.file_id = p_file_id",
        proofs.test_another_jobs_file_is_refused,
    ),
    "a failed attempt's object stays": (
        "start_segments",
        "PERFORM give_up_attempts(v_files);",
        "",
        proofs.test_a_failed_upload_is_retried_under_the_same_epoch,
    ),
    "orphans stay": (
        "clean_up_segments",
        "s.live_extents = 0\n               AND NOT segment_is_leased(s)",
        "false",
        proofs.test_another_lease_during_an_upload,
    ),
    "the cleanup ends an upload under way": (
        "clean_up_segments",
        "AND NOT segment_is_leased(s)",
        "",
        proofs.test_an_upload_under_a_lease_is_left_alone,
    ),
    "retention records nothing": (
        "move_log_starts",
        "PERFORM end_removed(v_seg_keys, v_seg_ends, v_seg_epochs, cause_log_start(), p_job);",
        "",
        proofs.test_an_object_goes_with_its_last_reference,
    ),
    "readers are not waited for": (
        "release_segments",
        "least(wall_time() - v_delay, read_horizon(p_job_id))",
        "wall_time()",
        proofs.test_readers_keep_what_they_may_still_read,
    ),
    "a swap records no end of what it replaced": (
        "swap_extents",
        "PERFORM end_removed(v_keys, v_old_ends, v_old_epochs, cause_replaced(), p_job_id);",
        "",
        proofs.test_a_replaced_segment_goes_under_its_own_key,
    ),
    "a repeated call is judged again": (
        "swap_extents",
        "    IF FOUND THEN\n        RETURN v_outcomes;",
        "    IF false THEN\n        RETURN v_outcomes;",
        check_every_order,
    ),
    "an input below the log start may be missing": (
        "swap_extents",
        "                            AND e.file_id IS NOT DISTINCT FROM i.file_id\n",
        "                            AND (i.last < p.log_start_offset OR e.file_id IS NOT DISTINCT FROM i.file_id)\n",
        check_every_order,
    ),
    "an offset is used twice": (
        "record_segments",
        "next_offset = h.next_offset + w.records,",
        "next_offset = h.next_offset,",
        proofs.test_another_lease_during_an_upload,
    ),
    "the audit loses a record": (
        "record_segments",
        "next_audit_offset = h.next_audit_offset + CASE WHEN p_is_audited THEN w.records ELSE 0 END",
        "next_audit_offset = h.next_audit_offset + w.records + 1",
        proofs.test_a_normal_upload,
    ),
}
"""What is wrong -> (SQL file, right text, wrong text, the proof that fails)."""


@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_is_caught(bug: str, world: SegmentWorld) -> None:
    function, right, wrong, proof = BUGS[bug]
    plant(world.url, function, right, wrong)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        await asyncio.wait_for(proof(world), 120)
    print(f"{bug}: {type(caught.value).__name__}")
