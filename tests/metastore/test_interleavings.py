"""The commit side by side with what races it, in forced and seeded orders; planted SQL bugs are caught.

tests/metastore/interleavings.py says how. Each bug is a few replaced texts in functions of a throw-away
database; a failure names its seed.
"""

from __future__ import annotations

from functools import partial

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.interleavings import Unexplained, played
from tests.metastore.sql_sources import Throwaway
from tests.planted import PlantedBugs, Trial
from tests.seeds import seeds

ROUNDS = 12
ROUNDS_OF_A_BUG = 40
"""Number of rounds of one history, for a planted bug."""

LOCK = "PERFORM lock_shards(array_agg(DISTINCT commit_shard(key, v_shards))) FROM unnest(p_part_key) AS key;"
READ = "FROM generate_subscripts(p_part_key, 1) AS part"
CLAIM = "v_claimed := claim_files(p_file_id, p_file_born_ms, p_file_size, p_file_bytes);"
ANSWERS = "INSERT INTO commit_answers (slot, file_id, answer)"
ANSWERED = "     WHERE ours;\n"
TOLERANT = (ANSWERED, "     WHERE ours ON CONFLICT DO NOTHING;\n")
EARLY_SEQ = (
    "PERFORM set_config('bug.seq_' || s, nextval('early_' || s)::text, true)"
    " FROM (SELECT DISTINCT commit_shard(key, v_shards) AS s FROM unnest(p_part_key) AS key) AS d; "
)
BUGS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "lock and read in one statement": (
        "commit_files",
        [
            (LOCK, ""),
            (
                READ,
                "FROM (SELECT lock_shards(array(SELECT commit_shard(key, v_shards) FROM unnest(p_part_key) AS key))"
                " OFFSET 0) AS l CROSS JOIN generate_subscripts(p_part_key, 1) AS part",
            ),
        ],
    ),
    "unsorted shard locks": (
        "lock_shards",
        [
            (
                "SELECT DISTINCT s FROM unnest(p_shards) AS s ORDER BY s",
                "SELECT s FROM unnest(p_shards) AS s ORDER BY s * (1 - 2 * (array_length(p_shards, 1) % 2))",
            )
        ],
    ),
    "the answer is looked up before the lock": (
        "commit_files",
        [
            (
                LOCK,
                "v_ours := array(SELECT NOT EXISTS (SELECT FROM commit_answers WHERE file_id = id)"
                " FROM unnest(p_file_id) WITH ORDINALITY AS f (id, file) ORDER BY file); " + LOCK,
            ),
            (
                CLAIM,
                "v_claimed := array(SELECT id FROM unnest(p_file_id, v_ours) AS f (id, ours) WHERE ours); PERFORM "
                + CLAIM.removeprefix("v_claimed := "),
            ),
            TOLERANT,
        ],
    ),
    "seq is drawn before the lock": (
        "commit_files",
        [
            (LOCK, EARLY_SEQ + LOCK),
            (
                "SELECT feed_slot(), shard, seq, CASE",
                "SELECT feed_slot(), shard, current_setting('bug.seq_' || shard)::bigint, CASE",
            ),
        ],
    ),
    "file ids are claimed after judging": (
        "commit_files",
        [
            (CLAIM, "v_claimed := p_file_id;"),
            (ANSWERS, "PERFORM " + CLAIM.removeprefix("v_claimed := ") + " " + ANSWERS),
            TOLERANT,
        ],
    ),
    "a deletion that takes partitions' rows after their shards' locks": (
        "delete_topics",
        [("PERFORM FROM partitions WHERE topic_id = ANY (p_topic_ids) ORDER BY partition_key FOR UPDATE;", "")],
    ),
    "a swap that does not check that its inputs are there": (
        "swap_extents",
        [
            ("                            AND e.file_id IS NOT DISTINCT FROM i.file_id\n", ""),
            ("bool_and(e.base_offset = coalesce(i.before + 1, p_base[i.swap])) AND", ""),
            ("PERFORM assert_changed(", "PERFORM concat("),
            ("PERFORM keep_swap_answer(", "PERFORM concat("),  # a repeated call is judged again
        ],
    ),
    "a deletion that takes no shard's lock": ("delete_topics", [("PERFORM lock_shards(v_shards);", "")]),
    "a condemnation that does not give way to a commit": (
        "condemn_files",
        [
            ("AND NOT EXISTS (SELECT FROM segment_files WHERE file_id = id)", ""),
            ("ON CONFLICT DO NOTHING", "ON CONFLICT (file_id) DO UPDATE SET state = 1"),
        ],
    ),
    "condemned ids that are forgotten while they may be committed": (
        "drop_files",
        [("AND committed_at < v_settled", "")],
    ),
}
"""What is wrong -> (function, [(right text, wrong text)])."""


@pytest.mark.requirement("W1", "W4", "W7")
@pytest.mark.parametrize("seed", seeds(range(3), range(3, 12)))
async def test_some_order_explains_what_every_session_saw(
    metastore: PostgresMetastore, metastore_url: str, seed: int
) -> None:
    await played(metastore_url, metastore, seed, ROUNDS, ends_files=True)


PLANTED = PlantedBugs("interleavings of commits", most=100, is_race=True)
SEQUENCES = [f"CREATE SEQUENCE early_{shard}" for shard in range(8)]
SOON = "ALTER DATABASE planted SET deadlock_timeout = '20ms'"


@PLANTED.cases(BUGS)
async def test_a_planted_bug_is_caught(bug: str, trial: Trial, throwaway: Throwaway) -> None:
    function, texts = BUGS[bug]
    history = partial(played, rounds=ROUNDS_OF_A_BUG, ends_files=function in ("condemn_files", "drop_files"))
    statements = [*SEQUENCES, SOON]
    await throwaway.look_for(trial, function, texts, history, Unexplained, statements=statements, sessions=6)
