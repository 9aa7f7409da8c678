"""Deliberate bugs of what an agent remembers of batches that it refused."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.agent.produce.acknowledge import Acknowledger
from headrace.agent.produce.files import CommittingFile, FlushedFile
from headrace.agent.produce.last_stored import LastStored
from headrace.agent.produce.refused_sequences import RefusedSequences
from headrace.agent.produce.requests import PlacedBatch
from headrace.metastore.api.commit import BatchAnswer, BatchOutcome
from tests.patch import Patch
from tests.simulation.bug import bug
from tests.simulation.problems import Kind


@bug("W7", Kind.SPURIOUS)
def what_is_behind_a_refused_batch_is_called_out_of_order(patch: Patch) -> None:
    """The commit's OUT_OF_ORDER goes to the client as it is."""
    patch.replace(RefusedSequences, "explain", lambda self, batch, now: False)
    each_agent_is_alone(patch)


def each_agent_is_alone(patch: Patch) -> None:
    """What an agent does only where no other is registered: it takes a gap on a settled connection for final."""
    patch.replace(LastStored, "_is_alone", lambda self: True)


@bug("W7", Kind.SPURIOUS)
def a_gap_is_final_while_an_earlier_batch_is_on_its_way_through_another_agent(patch: Patch) -> None:
    """Only what this agent refused explains that a batch is out of order."""
    patch.replace(RefusedSequences, "explain_by_another_agent", lambda self, batch, now, missing, is_settled: False)


@bug("W7", Kind.SPURIOUS)
def a_gap_is_final_on_every_connection(patch: Patch) -> None:
    """How the last stored batch of the producer came is not looked at."""
    patch.replace(LastStored, "is_settled", lambda self, entry, answer: True)


@bug("W7", Kind.PHANTOM)
def a_refused_batch_that_another_agent_stored_is_waited_for(patch: Patch) -> None:
    """What is behind a refused batch is refused, also if the commit accepted it."""

    def committed(self: Acknowledger, file: FlushedFile, answers: Sequence[BatchAnswer]) -> None:
        original(
            self, file, [judged_by_notes(self, file, *each) for each in zip(_first_entries(file), answers, strict=True)]
        )

    def judged_by_notes(self: Acknowledger, file: FlushedFile, entry: PlacedBatch, answer: BatchAnswer) -> BatchAnswer:
        return BatchAnswer(BatchOutcome.OUT_OF_ORDER, -1, -1) if self._explanation(file, entry, answer) else answer

    original = patch.replace(Acknowledger, "committed", committed)


def _first_entries(file: FlushedFile) -> list[PlacedBatch]:
    assert isinstance(file.stage, CommittingFile)
    return [entry for entry in file.stage.entries if not entry.records_before]


@bug("W7", Kind.SPURIOUS)
def a_file_that_was_not_stored_leaves_no_note(patch: Patch) -> None:
    """Only refusals of the commit are noted, and those before the buffer."""

    def failed(self: Acknowledger, file: object, refusal: object) -> None:
        note = self._note
        self._note = lambda entry: None  # type: ignore[method-assign]
        try:
            original(self, file, refusal)
        finally:
            self._note = note  # type: ignore[method-assign]

    original = patch.replace(Acknowledger, "failed", failed)
    each_agent_is_alone(patch)
