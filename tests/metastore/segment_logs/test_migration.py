"""The migration of a legacy topic, step by step: after each the logical state is the same; planted bugs are found."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace.metastore.segment_logs import migration
from headrace.metastore.segment_logs.migration import MigrationState, rekey, replay, require_compactable
from headrace.metastore.segment_logs.projection import DELETE_RETENTION_MS, Projection, StreamRecord
from headrace.storage.errors import HeadraceError, InvalidError
from tests.instructions import instructions_of
from tests.metastore.segment_logs.legacy_topic import FINISHED, LegacyTopic
from tests.metastore.segment_logs.test_records import golden
from tests.planted import PlantedBugs, Trial
from tests.seeds import first

SEEDS = first(8, range(25))
RETENTION_MS = 400_000
pytestmark = pytest.mark.requirement("R10")


def check(topic: LegacyTopic) -> MigrationState:
    """The stream says what its writers did."""
    state = replay(topic.records)
    wanted = {uid: (f.start_offset, f.end_offset, s) for uid, (f, s, _) in topic.open.items()}
    assert {uid: live[1:] for uid, live in state.live().items()} == wanted
    return state


def migrate(seed: int) -> None:
    """Every step of the plan, with writers of both kinds in between."""
    topic = LegacyTopic(random.Random(seed))
    topic.write_some(80, new=0)
    check(topic)
    topic.write_some(40, new=0.5)  # the writers are replaced one after another
    check(topic)
    topic.write(rekey(check(topic)))
    assert not check(topic).without_key()
    topic.write_some(20, new=1)  # these still end segments that old writers began, without keys
    topic.write(rekey(check(topic)))
    for each in list(topic.open):
        topic.open[each] = (*topic.open[each][:2], True)
    with pytest.raises(InvalidError, match="records without a key are left"):
        require_compactable(check(topic))
    topic.now_ms += RETENTION_MS // 2
    topic.write(rekey(check(topic)))
    topic.records = [r for r in topic.records if r.key is not None]  # the end of the window for all legacy records
    state = check(topic)
    require_compactable(state)
    topic.compact()
    check(topic)
    assert all(record.key is not None for record in topic.records)
    topic.now_ms += DELETE_RETENTION_MS
    topic.compact()
    after = check(topic)
    assert after.records == len(after.segments)
    projection = Projection()
    for record in topic.records:
        projection.apply(record, is_compacted=True)
    assert {s.segment_id for s in projection.segments.values()} == set(topic.open)


def migrate_all() -> None:
    for seed in SEEDS:
        migrate(seed)


def test_the_logical_state_is_the_same_after_every_step() -> None:
    migrate_all()


def test_a_live_segment_without_its_first_record_is_refused_by_name() -> None:
    topic = LegacyTopic(random.Random(1))
    topic.write_some(1, new=0)
    ((segment_id, _),) = topic.open.items()
    topic._advance(segment_id, is_new=False)
    topic.records = topic.records[1:]
    state = replay(topic.records)
    assert state.lost() == [segment_id]
    with pytest.raises(InvalidError, match=f"without their first record: count=1 first={segment_id}"):
        rekey(state)


def test_compaction_is_refused_until_then() -> None:
    topic = LegacyTopic(random.Random(1))
    topic.write_some(10, new=0)
    with pytest.raises(InvalidError, match="live segments have no key yet: count="):
        require_compactable(replay(topic.records))


def test_one_end_offset_and_epoch_of_several_uuids() -> None:
    """The one that was written last gets the epoch of the rule, those before it the next lower free ones."""
    topic = LegacyTopic(random.Random(1), epoch=7)
    for _ in range(3):
        topic.next_start = 0
        topic._upload(is_new=False)
    uploads = list(topic.open)
    for segment_id in uploads:
        topic._advance(segment_id, is_new=False)
    topic.write(rekey(replay(topic.records)))
    known = replay(topic.records).segments
    assert [known[uid].key.epoch for uid in uploads if known[uid].key] == [5, 6, 7]
    assert all(known[uid].state is FINISHED for uid in uploads)
    assert rekey(replay(topic.records)) == []


def test_kafkas_own_records_are_taken() -> None:
    topic = LegacyTopic(random.Random(1))
    for name, value, _ in golden("lifecycle_v0.tsv"):
        if name in ("segment", "update_custom", "partition_started"):
            topic.append(None, bytes.fromhex(value))
    state = replay(topic.records)
    assert (state.unkeyed, len(state.live()), len(state.markers)) == (3, 1, 1)
    topic.write(rekey(state))
    after = replay(topic.records)
    assert after.live() == state.live()
    assert after.without_key() == []
    assert rekey(after) == []
    keys = [record.key.decode() for record in topic.records if record.key]
    assert [key.split(":", 1)[1] for key in keys] == ["7:1999:5", "7:1999:5", "7"]


def only_finished_ones(right: Any) -> Any:
    return lambda self: [uid for uid in right(self) if self.segments[uid].state is FINISHED]


def everything_has_a_key(right: Any) -> Any:
    return lambda self: []


def no_tombstones(right: Any) -> Any:
    return lambda self: []


def the_start_offset_is_left_out(right: Any) -> Any:
    def without(full: Any, state: Any) -> Any:
        import dataclasses

        return dataclasses.replace(right(full, state), custom_metadata=None)

    return without


def one_epoch_for_all(right: Any) -> Any:
    return lambda wanted, used: iter([wanted])


def unkeyed_updates_are_ignored(right: Any) -> Any:
    return lambda state, key, value: right(state, key, value) if key is not None or value.api_key == 0 else None


BUGS: list[tuple[Callable[[Any], Any], Any, str]] = [
    (only_finished_ones, MigrationState, "without_key"),
    (everything_has_a_key, MigrationState, "without_key"),
    (no_tombstones, MigrationState, "undead"),
    (the_start_offset_is_left_out, migration, "update_of"),
    (one_epoch_for_all, migration, "_free"),
    (unkeyed_updates_are_ignored, migration, "_add"),
]


PLANTED = PlantedBugs("migration of a legacy topic", most=500)


@PLANTED.cases(BUGS, lambda bug: bug[0].__name__)
def test_a_planted_bug_is_found(bug: tuple[Callable[[Any], Any], Any, str], trial: Trial) -> None:
    wrong, owner, name = bug
    trial.plant(owner, name, wrong(getattr(owner, name)))
    for seed in trial.seeds():
        with trial.shown_by(AssertionError, HeadraceError, pytest.fail.Exception):
            migrate(seed)


def _copied(segments: int) -> list[StreamRecord]:
    """The copies of that many live segments, by writers of both kinds, and what gives them all a key."""
    topic = LegacyTopic(random.Random(5))
    for number in range(segments):
        topic._upload(is_new=number % 2 == 0)
    topic.write(rekey(replay(topic.records)))
    return topic.records


@pytest.mark.parametrize("step", [replay, lambda records: rekey(replay(records))], ids=["replay", "rekey"])
def test_the_cost_grows_as_the_number_of_segments(step: Callable[[list[StreamRecord]], object]) -> None:
    small, large = _copied(50), _copied(200)
    grown = instructions_of(lambda: step(large)) / instructions_of(lambda: step(small))
    assert grown < 1.2 * len(large) / len(small)
