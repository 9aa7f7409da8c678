"""The proofs of the commit fail when the commit is wrong: each named bug is planted and must be caught.

A bug is one replaced text in one SQL function. The machine stops at the first history that tells the
difference and does not shrink it. What only shows between sessions (a lock and the read that needs it
in one statement) is planted in tests/metastore/test_commit_concurrency.py.
"""

from __future__ import annotations

from hypothesis import seed
from hypothesis.stateful import run_state_machine_as_test

from tests.generated_examples import FEW, by_seed_alone
from tests.metastore.sql_sources import Throwaway, broken
from tests.planted import PlantedBugs, Trial
from tests.properties.commit_machine import machine_on

BUGS = {
    "a ring of 4 (W7)": ("commit_files", "FROM 1 FOR 120", "FROM 1 FOR 96"),
    "sequence before epoch (W7)": (
        *("fold_producers", "b.epoch IS NOT DISTINCT FROM v_epoch"),
        "v_epoch IS NOT NULL",
    ),
    "a ring that is kept after its epoch (W7)": (
        *("commit_files", "CASE WHEN s.epoch = p_batch_epoch[last]"),
        "CASE WHEN true",
    ),
    "sequences that do not wrap (W7)": ("packing", "& 2147483647)::int", "% 2147483647)::int"),
    "a gap is accepted (W7)": (
        *("fold_producers", "(v_same AND b.sequence = v_next)"),
        "(v_same AND b.sequence >= v_next)",
    ),
    "any id may start above 0 (W7)": ("fold_producers", "SELECT last_id >= p_producer_id AND", "SELECT true OR"),
    "an id's block is as old as its producer (W7)": ("fold_producers", "+ producer_id_block_ms() <", "<"),
    "a young partition forgets producers (W7)": (
        *("fold_producers", "SELECT to_ms(created_at) < v_before"),
        "SELECT true",
    ),
    "what is not known to be whole is taken for stored (W1)": (
        *("fold_producers", "s.contiguous_life BETWEEN 0 AND cluster_life()"),
        "true",
    ),
    "what a life that never began here stored is taken for stored (W1)": (
        *("fold_producers", "s.contiguous_life BETWEEN 0 AND cluster_life()"),
        "s.contiguous_life >= 0",
    ),
    "what starts above 0 is taken for whole (W1)": (
        "commit_files",
        "CASE WHEN start = 0 THEN v_life ELSE -1 END",
        "v_life",
    ),
    "another epoch's sequences are taken for stored (W1)": (
        *("fold_producers", "ELSIF v_same AND v_whole AND"),
        "ELSIF v_whole AND",
    ),
    "half a batch is taken for stored (W1)": (
        *("fold_producers", "ELSE p_sequence::bigint + p_records <= p_next END"),
        "ELSE p_sequence < p_next END",
    ),
    "sequences that did not wrap are taken for stored (W1)": (
        "fold_producers",
        "RETURN CASE WHEN p_wrapped THEN",
        "RETURN CASE WHEN true THEN",
    ),
    "a refused batch moves its producer on (W7)": (
        *("fold_producers", "outcome[b.i] := batch_out_of_order();"),
        "outcome[b.i] := batch_out_of_order(); v_next := next_sequence(b.sequence, b.records);",
    ),
    "an answer is not found again (W7)": ("claim_files", "a.slot = answer_slot(p_born_ms)", "a.slot = -1"),
    "a condemned file is committed (W3)": (
        "claim_files",
        "AND NOT EXISTS (SELECT FROM segment_files WHERE file_id = id)\n"
        "         ORDER BY id\n"
        "        ON CONFLICT DO NOTHING",
        "ORDER BY id ON CONFLICT (file_id) DO UPDATE SET state = 0",
    ),
    "a dead batch between two live ones is read (W8)": (
        *("judge_batches", "v_outcome[i - 1] IS DISTINCT FROM batch_appended()"),
        "false",
    ),
    "a dead batch takes offsets (W8)": (
        *("judge_batches", "CASE WHEN v_outcome[i] = batch_appended() THEN records ELSE 0 END"),
        "records",
    ),
    "counts before duplicates (P4)": (
        *("fold_producers", "IF v_place >= 0 THEN"),
        "IF v_place >= 0 AND outcome[b.i] = 0 THEN",
    ),
    "every call starts at the same offset (W4)": (
        *("commit_files", "SET high_watermark = h.high_watermark + p_part_records[part]"),
        "SET high_watermark = 0",
    ),
    "refused batches raise the high watermark (W8)": (
        *("commit_files", "SELECT l.* INTO p_part_records, p_part_extents, p_part_bytes, p_part_time"),
        "SELECT p_part_records, l.part_extents, l.part_bytes, l.part_time\n"
        "          INTO p_part_records, p_part_extents, p_part_bytes, p_part_time",
    ),
    "a partition gets its longest run only (W4)": ("lay_out", "sum(records)::bigint", "max(records)::bigint"),
    "only the newest batch of a call is remembered (W7)": (
        *("lay_out", "CASE WHEN p_last - 1 <= coalesce(p_before, 0)"),
        "CASE WHEN true",
    ),
    "batches of a call are remembered with one offset (W7)": (
        *("lay_out", "p_head + p_records_before[p_recent[p_last - 1]]"),
        "p_head + p_records_before[p_recent[p_last]]",
    ),
    "a ring takes batches of the producer before (W7)": (
        *("lay_out", "(sum(count(i)) OVER (ORDER BY prod))::int"),
        "(sum(count(i)) OVER ())::int",
    ),
    "the feed forgets a row (W5)": (
        *("commit_files", "          FROM numbered\n"),
        "          FROM numbered LIMIT 1\n",
    ),
}
"""What is wrong -> (function, right text, wrong text)."""

PLANTED = PlantedBugs("commit machine", most=100)


@PLANTED.cases(BUGS)
def test_the_machine_catches(bug: str, trial: Trial, throwaway: Throwaway) -> None:
    """This is what needs two sessions at once is in tests/metastore/test_interleavings.py."""
    function, right, wrong = BUGS[bug]
    for number in trial.seeds():
        planted = throwaway.kept(broken(function, [(right, wrong)]))
        with planted as database, machine_on(database) as machine, by_seed_alone(), trial.shown_by(Exception):
            run_state_machine_as_test(seed(number)(machine), settings=FEW)
