"""The proofs of decisions 7 and 82 fail when what an agent remembers of batches is wrong: planted bugs of W7."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import pytest

from headrace.agent.produce import last_stored
from headrace.agent.produce.acknowledge import Acknowledger
from headrace.agent.produce.last_stored import LastStored
from headrace.agent.produce.refused_sequences import Numbered, RefusedSequences
from headrace.agent.produce.requests import PlacedBatch, not_stored
from headrace.metastore.api.commit import BatchAnswer
from tests.agent.produce import test_batches_elsewhere as elsewhere
from tests.agent.produce import test_refused_sequences as refused
from tests.patch import Patch

_explain_by_another_agent = RefusedSequences.explain_by_another_agent
_is_settled, _note_stored = LastStored.is_settled, LastStored.note


class Bug(NamedTuple):
    """What replaces `owner.name`, and the proof that must notice it."""

    owner: object
    name: str
    wrong: Callable[..., object]
    prove: Callable[[], Awaitable[None]]


def _begin_again(self: RefusedSequences, batch: Numbered, now: float, *, missing: int, is_settled: bool) -> bool:
    found = self._producers.get((batch.producer_id, batch.place))
    if found is not None:
        found.gap = None
    return _explain_by_another_agent(self, batch, now, missing=missing, is_settled=is_settled)


def _whatever_is_missing(
    self: RefusedSequences, batch: Numbered, now: float, *, missing: int, is_settled: bool
) -> bool:
    """Find the gap by the stream alone."""
    return _explain_by_another_agent(self, batch, now, missing=0, is_settled=is_settled)


def _settled_whatever(**known: int) -> Callable[..., bool]:
    """Return `is_settled` without a part of the commit's answer."""

    def is_settled(self: LastStored, entry: PlacedBatch, answer: BatchAnswer) -> bool:
        return _is_settled(self, entry, answer._replace(**known))

    return is_settled


def _noted_without_order(self: LastStored, entry: PlacedBatch, *, is_appended: bool) -> None:
    """Note a batch as if it followed the one before it."""
    known = self._newer.get(entry.stream)
    if known is not None:
        known.next_sequence = entry.batch.base_sequence
    _note_stored(self, entry, is_appended=is_appended)


BUGS = {
    "the note of a refusal is never dropped": Bug(
        RefusedSequences,
        "stored",
        lambda self, batch: None,
        refused.test_what_comes_behind_a_batch_that_was_not_stored_is_refused_retriably,
    ),
    "only what was refused is a reason": Bug(
        Acknowledger,
        "_explanation",
        lambda self, file, entry, answer: (
            "planted" if self._refused.explain(entry.numbered, self._clock.monotonic()) else None
        ),
        refused.test_what_comes_behind_a_file_without_an_answer_is_refused_retriably,
    ),
    "a refused batch that another agent stored is waited for": Bug(
        RefusedSequences,
        "explain",
        lambda self, batch, now: True,
        refused.test_a_refused_batch_that_another_agent_stored_prevents_nothing,
    ),
    "only a refusal here is a reason": Bug(
        RefusedSequences,
        "explain_by_another_agent",
        lambda self, batch, now, missing, is_settled: False,
        elsewhere.test_a_gap_after_a_move_is_waited_for_until_the_other_agent_has_stored_it,
    ),
    "a gap is final once anything was stored here": Bug(
        LastStored,
        "is_settled",
        lambda self, entry, answer: entry.stream in self._newer,
        elsewhere.test_a_gap_on_a_connection_that_was_opened_lately_is_waited_for,
    ),
    "each gap is waited for": Bug(
        LastStored,
        "is_settled",
        lambda self, entry, answer: False,
        elsewhere.test_a_gap_behind_a_batch_that_came_by_the_same_connection_is_final,
    ),
    "a connection is settled from its first batch": Bug(
        LastStored,
        "is_settled",
        lambda self, entry, answer: self._newer[entry.stream].connection_id == entry.request.origin.connection_id,
        elsewhere.test_a_gap_on_a_connection_that_was_opened_lately_is_waited_for,
    ),
    "each batch begins the wait again": Bug(
        RefusedSequences,
        "explain_by_another_agent",
        _begin_again,
        elsewhere.test_a_gap_that_stays_is_final_after_the_request_timeout_of_clients,
    ),
    "what another agent stored is not looked at": Bug(
        LastStored,
        "is_settled",
        _settled_whatever(next_sequence=0),
        elsewhere.test_a_gap_is_waited_for_if_another_agent_stored_something_since,
    ),
    "a batch behind those of another agent goes on": Bug(
        LastStored,
        "note",
        _noted_without_order,
        elsewhere.test_what_came_elsewhere_meanwhile_begins_the_time_again,
    ),
    "moves of the leader are not looked at": Bug(
        last_stored,
        "_moved_at",
        lambda image, batch: 0,
        partial(elsewhere.test_a_gap_is_waited_for_after_the_leader_moved_there_and_back, 0, True),
    ),
    "the agent's picture of the leaders is taken for the newest": Bug(
        LastStored,
        "is_settled",
        _settled_whatever(metadata_offset=0),
        partial(elsewhere.test_a_gap_is_waited_for_after_the_leader_moved_there_and_back, 0, False),
    ),
    "a gap is one of the stream, not of the missing batch": Bug(
        RefusedSequences,
        "explain_by_another_agent",
        _whatever_is_missing,
        elsewhere.test_a_gap_that_was_closed_through_another_agent_does_not_make_the_next_one_final,
    ),
    "what the commit accepts is refused": Bug(
        Acknowledger,
        "_end_notes",
        lambda self, entry, is_appended: self._refuse((entry,), not_stored("planted")),
        refused.test_a_refused_batch_that_another_agent_stored_prevents_nothing,
    ),
}


@pytest.mark.parametrize("name", BUGS)
async def test_a_bug_fails_the_proof(name: str, patch: Patch) -> None:
    bug = BUGS[name]
    patch.replace(bug.owner, bug.name, bug.wrong)
    with pytest.raises(AssertionError):
        await bug.prove()
