"""Planted bugs in the SQL of linked topics: each fails the test that proves what it breaks."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from headrace.storage.errors import HeadraceError
from tests.metastore import test_linked_topics as proofs
from tests.metastore.sessions import Session
from tests.metastore.sql_sources import plant

scene = proofs.scene
Proof = Callable[..., Awaitable[None]]
BUGS: dict[str, tuple[str, str, str, Proof]] = {
    "a chunk twice, or behind a gap": (
        "append_linked",
        "AND r.base = coalesce(lag(r.last) OVER of_key + 1, h.high_watermark)",
        "",
        proofs.test_a_chunk_is_appended_where_it_continues_the_log_and_nowhere_else,
    ),
    "two workers": (
        "append_linked",
        "AND r.base = coalesce(lag(r.last) OVER of_key + 1, h.high_watermark)",
        "",
        proofs.test_two_workers_with_one_partition_append_each_offset_once,
    ),
    "a worker without its lease": (
        "append_linked",
        "PERFORM assert_job(p_job_id, p_epoch);",
        "",
        proofs.test_without_the_lease_nothing_is_appended,
    ),
    "leader epochs that fall": (
        "append_linked",
        "AND r.leader_epoch >= coalesce(lag(r.leader_epoch) OVER of_key,\n"
        "                                                                   last_linked_epoch(r.key))",
        "",
        proofs.test_leader_epochs_never_fall_and_stay_below_the_partitions_own,
    ),
    "a chunk after the promotion": (
        "append_linked",
        "p.state = state_linked() AND",
        "",
        proofs.test_a_copy_is_promoted_only_with_all_that_the_source_had,
    ),
    "producer ids that meet": (
        "append_linked",
        "AND key <> ALL (v_taken)",
        "",
        proofs.test_a_producer_id_of_this_cluster_stops_the_partition_and_new_ids_are_apart,
    ),
    "ids of copied producers given out again": (
        "allocate_producer_ids",
        "WHEN producer_ids_are_apart()",
        "WHEN false",
        partial(proofs.test_after_a_link_is_dropped_a_new_producer_has_no_id_of_a_copied_one, life=1),
    ),
    "a producer's earlier batches forgotten": (
        "append_linked",
        "coalesce(ring_before(s.ring_known, ring), '')",
        "''",
        proofs.test_a_worker_that_knows_only_its_own_batches_forgets_none_of_before,
    ),
    "an empty copy taken for whole": (
        "report_partitions",
        "r.finish BETWEEN 0 AND h.high_watermark",
        "r.finish <= h.high_watermark",
        proofs.test_a_worker_that_does_not_know_the_sources_end_yet_reports_no_copy_as_whole,
    ),
    "a promotion before the end": (
        "promote_topics",
        "AND l.ready_end <> h.high_watermark",
        "AND false",
        proofs.test_a_copy_is_promoted_only_with_all_that_the_source_had,
    ),
}


@pytest.mark.requirement("X14")
@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_fails_its_proof(
    scene: proofs.LinkedScene, metastore_url: str, raw: Session, bug: str
) -> None:
    function, right, wrong, proof = BUGS[bug]
    plant(metastore_url, function, right, wrong)
    given = {"raw": raw} if "raw" in inspect.signature(proof).parameters else {}
    with pytest.raises((AssertionError, HeadraceError, pytest.fail.Exception)):
        await proof(scene, **given)
