"""Planted bugs in the SQL of linked groups: each fails the test that proves what it breaks."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

import pytest

from headrace.storage.errors import HeadraceError
from tests.metastore import test_linked_groups as proofs
from tests.metastore.sessions import Session
from tests.metastore.sql_sources import plant

pytestmark = pytest.mark.requirement("X14")
scene, groups = proofs.scene, proofs.groups
BUGS: dict[str, tuple[str, str, str, Callable[..., Awaitable[None]]]] = {
    "an offset above the end of the copy": (
        "copy_group_offsets",
        "least(o.committed, e.copy_end)",
        "o.committed",
        proofs.test_offsets_follow_the_source_up_to_the_end_of_the_copy_also_back,
    ),
    "an offset of other records after the promotion": (
        "copy_group_offsets",
        "SELECT end_offset FROM promoted_partitions",
        "SELECT 1000 FROM promoted_partitions",
        proofs.test_after_the_promotion_offsets_end_where_the_copy_ended,
    ),
    "written while it has members": (
        "copy_group_offsets",
        "v_group.state <> 'Empty' OR",
        "",
        proofs.test_a_group_with_members_here_is_not_written_any_more,
    ),
    "written again once its members stopped": (
        "copy_group_offsets",
        " OR (v_linked.came_at IS NOT NULL AND NOT v_is_new)",
        "",
        proofs.test_a_group_with_members_here_is_not_written_any_more,
    ),
    "a client's commit written over": (
        "copy_group_offsets",
        "AND o.link IS DISTINCT FROM p_link)",
        "AND false)",
        proofs.test_what_a_client_committed_here_is_never_written_over,
    ),
    "a transaction's offset written over as it ends": (
        "copy_group_offsets",
        "     WHERE g.link = p_link;\nEND $$;",
        "     WHERE true;\nEND $$;",
        proofs.test_a_transaction_that_ends_while_offsets_are_copied_wins,
    ),
    "a client's commit taken for a copy": (
        "commit_group_offsets",
        "link = NULL",
        "link = g.link",
        proofs.test_what_a_client_committed_here_is_never_written_over,
    ),
    "a transaction's offset taken for a copy": (
        "end_transaction",
        "link = NULL",
        "link = g.link",
        proofs.test_offsets_of_transactions_are_never_written_over,
    ),
    "a worker without its lease": (
        "copy_group_offsets",
        "PERFORM assert_job(p_job_id, p_epoch);",
        "",
        proofs.test_only_judged_groups_of_this_lease_are_written,
    ),
    "groups that the controller has not judged": (
        "copy_group_offsets",
        "v_linked.refusal IS DISTINCT FROM ''",
        "v_linked.refusal <> ''",
        proofs.test_only_judged_groups_of_this_lease_are_written,
    ),
    "an answer from before the question": (
        "copy_group_offsets",
        "greatest(g.answered, p_answers)",
        "g.asked",
        proofs.test_a_coordinator_learns_when_the_last_offsets_are_here,
    ),
    "an answer although the copy lacks records": (
        "copy_group_offsets",
        "v_outcome = group_came() OR v_behind = 0",
        "true",
        proofs.test_a_coordinator_learns_when_the_last_offsets_are_here,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_fails_its_proof(groups: proofs.Groups, metastore_url: str, raw: Session, bug: str) -> None:
    function, right, wrong, proof = BUGS[bug]
    plant(metastore_url, function, right, wrong)
    wanted = inspect.signature(proof).parameters
    given = {name: value for name, value in {"raw": raw, "metastore_url": metastore_url}.items() if name in wanted}
    with pytest.raises((AssertionError, HeadraceError, pytest.fail.Exception)):
        await proof(groups, **given)
