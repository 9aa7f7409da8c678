"""Producers of a topic that was deleted and created again are judged as the model does, and planted bugs are found."""

from __future__ import annotations

import pytest
from hypothesis import seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.generated_examples import FEW, by_seed_alone
from tests.metastore.sql_sources import Throwaway, broken
from tests.planted import PlantedBugs, Trial
from tests.properties.commit_machine import machine_on
from tests.properties.recreation_machine import RecreationMachine
from tests.seeds import examples

GOES_ON = "goes_on_after_deletion"
BUGS = {
    "an older id starts at 5 on a brand-new topic": (GOES_ON, "    ), false);", "    ), true);"),
    "any sequence is accepted": (GOES_ON, "s.next_sequence = p_sequence OR", "true OR"),
    "any epoch is accepted": (GOES_ON, "SELECT s.epoch = p_epoch AND", "SELECT"),
    "a batch that was sent again is refused": (GOES_ON, "OR ring_place(s.ring, p_range) >= 0", ""),
    "a deleted topic is always remembered": (GOES_ON, "AND to_ms(deleted_at) > wall_ms() - p_expiration_ms", ""),
    "the oldest topic of the name counts": (GOES_ON, "ORDER BY d.key DESC", "ORDER BY d.key"),
    "the purge removes the producers": (
        "purge_deleted_partitions",
        "    v_most := empty_partition(v_key, v_kept, p_limit);",
        "    DELETE FROM producer_state WHERE partition_key = v_key;\n"
        "    v_most := empty_partition(v_key, v_kept, p_limit);",
    ),
}
"""What is wrong -> (function, right text, wrong text)."""

PLANTED = PlantedBugs("recreation machine", most=100)


@pytest.mark.requirement("W7")
def test_producers_go_on_as_the_model_says(metastore_url: str) -> None:
    with machine_on(metastore_url, RecreationMachine) as machine:
        run_state_machine_as_test(machine, settings=settings(max_examples=examples(30), stateful_step_count=30))


@pytest.mark.slow
def test_producers_go_on_over_long_histories(metastore_url: str) -> None:
    with machine_on(metastore_url, RecreationMachine) as machine:
        run_state_machine_as_test(machine, settings=settings(max_examples=100, stateful_step_count=60))


@PLANTED.cases(BUGS)
def test_the_machine_catches(bug: str, trial: Trial, throwaway: Throwaway) -> None:
    function, right, wrong = BUGS[bug]
    for number in trial.seeds():
        planted = throwaway.kept(broken(function, [(right, wrong)]))
        with (
            planted as database,
            machine_on(database, RecreationMachine) as machine,
            by_seed_alone(),
            trial.shown_by(Exception),
        ):
            run_state_machine_as_test(seed(number)(machine), settings=FEW)
