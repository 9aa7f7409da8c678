"""A streams group, step by step: the cases of Kafka's tests (GroupMetadataManagerTest, StreamsGroupTest)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.group_values import MemberRef
from headrace.agent.groups.members.member import LEAVE_EPOCH
from headrace.agent.groups.streams.configured_topology import StatusCode
from headrace.agent.groups.streams.group import StreamsAnswer
from headrace.agent.groups.streams.members import QueryEndpoint
from headrace.metastore.api.groups import GroupKind
from tests.agent.groups.streams.streams_world import (
    COUNT,
    OFFSET_COMMIT,
    REBALANCE,
    SESSION,
    World,
    internal,
    sub,
    task_ids,
    topology,
)

pytestmark = pytest.mark.requirement("X16")
MAPPED = topology(sub("0", ["words"]))
"""A topology without internal topics."""


def world(**more: float) -> World:
    made = World(words=4, by_word=4, counts=4)
    made.configs = replace(made.configs, **more)  # type: ignore[arg-type]
    return made


def statuses(answer: StreamsAnswer) -> list[int]:
    return [status.code for status in answer.statuses]


def own(of: World, member_id: str) -> dict[str, object]:
    """Return what a member says that owns what it was assigned."""
    member = of.group.roster.get(member_id)
    assert member is not None
    return {"tasks": tuple(task_ids(COUNT, member.assigned, is_standby=role) for role in (False, True))}


def test_the_first_member_gets_all_tasks_at_once_without_a_delay() -> None:
    of = world()
    answer = of.join("a", process_id="p", client_tags=(("zone", "1"),))
    assert (answer.code, answer.member_epoch, answer.statuses) == (ErrorCode.none, 2, ())
    assert of.names_of(answer.assigned) == [f"{sub}_{at}" for sub in (0, 1) for at in range(4)]
    assert (of.group.state_name, of.group.protocol_type, of.group.kind) == ("Stable", "streams", GroupKind.STREAMS)
    assert of.group.subscribed_topics() == {"words", "by-word"}
    assert of.durable is not None
    assert of.durable.subscribed == ("by-word", "words")
    same = of.beat("a", 2)
    assert (same.assigned, same.member_epoch, of.saves) == (None, 2, [])


def test_a_second_member_gets_its_part_once_the_first_gave_it_up() -> None:
    of = world()
    of.join("a")
    second = of.join("b")
    assert (second.member_epoch, second.assigned, of.group.state_name) == (3, frozenset(), "Reconciling")
    asked = of.beat("a", 2)
    assert (asked.member_epoch, of.names_of(asked.assigned)) == (2, ["0_0", "0_1", "1_0", "1_1"])
    assert of.beat("b", 3).assigned is None, "the first has not given them up"
    gave = of.beat("a", 2, **own(of, "a"))
    assert (gave.member_epoch, gave.assigned) == (3, None)
    got = of.beat("b", 3)
    assert of.names_of(got.assigned) == ["0_2", "0_3", "1_2", "1_3"]
    assert of.group.state_name == "Stable"


def test_a_member_that_does_not_give_up_in_time_is_removed() -> None:
    of = world()
    of.join("a", rebalance_timeout=10.0)
    of.join("b")
    of.beat("a", 2)
    of.pass_time(10.0)
    assert of.group.roster.get("a") is None
    assert of.beat("a", 2).code is ErrorCode.unknown_member_id
    assert len(of.beat("b", 3).assigned or ()) == 8


def test_a_silent_member_is_removed_after_its_session() -> None:
    of = world()
    of.join("a")
    of.pass_time(SESSION - 1)
    assert of.group.state_name == "Stable"
    of.beat("a", 2)
    of.pass_time(SESSION)
    assert (of.group.state_name, of.group.is_idle()) == ("Empty", True)


def test_epochs_are_checked_as_kafka_does() -> None:
    of = world()
    of.join("a")
    of.join("b")
    of.beat("a", 2)
    of.beat("a", 2, **own(of, "a"))
    newer = of.beat("a", 4)
    assert newer.code is ErrorCode.fenced_member_epoch
    assert (newer.message or "").startswith(
        "The streams group member has a greater member epoch (4) than the one known"
    )
    assert of.beat("a", 2).code is ErrorCode.fenced_member_epoch, "the epoch before, but it does not say what it owns"
    assert of.beat("a", 2, **own(of, "a")).code is ErrorCode.none, "it missed the last answer"
    assert of.beat("a", 1, **own(of, "a")).code is ErrorCode.fenced_member_epoch
    unknown = of.beat("x", 3)
    assert (unknown.code, unknown.message) == (ErrorCode.unknown_member_id, "Member x is not a member of group g.")
    of.size_max = 2
    full = of.join("c")
    assert (full.code, full.message) == (
        ErrorCode.group_max_size_reached,
        "The streams group has reached its maximum capacity of 2 members.",
    )
    assert of.join("b").code is ErrorCode.none, "it is in it already"


def test_an_answer_that_was_lost_is_repeated() -> None:
    of = world()
    of.join("a")
    again = of.beat("a", 2, tasks=((), ()))
    assert len(again.assigned or ()) == 8


def test_a_member_that_joins_again_keeps_its_tasks() -> None:
    of = world()
    first = of.join("a")
    again = of.join("a")
    assert (again.member_epoch, again.assigned) == (first.member_epoch, first.assigned)
    assert of.join("a", process_id="other").member_epoch == first.member_epoch + 1, "it is another process now"


def test_tasks_that_are_not_there_are_refused() -> None:
    of = world()
    of.join("a")
    unknown = topology(sub("9", ["words"]))
    answer = of.beat("a", 2, tasks=(task_ids(unknown, [0], is_standby=False), ()))
    assert (answer.code, answer.message) == (
        ErrorCode.invalid_request,
        "Subtopology 9 does not exist in the topology.",
    )
    answer = of.beat("a", 2, tasks=((), task_ids(COUNT, [1 << 24 | 4], is_standby=True)))
    assert answer.message == "Task 4 for subtopology 0 is invalid. Number of tasks for this subtopology: 4"
    assert of.beat("a", 2).code is ErrorCode.none


def test_an_empty_group_waits_for_more_members() -> None:
    of = world(initial_rebalance_delay=3.0)
    first, second = of.join("a"), of.join("b")
    for answer in (first, second):
        assert (answer.member_epoch, answer.assigned, statuses(answer)) == (
            1,
            frozenset(),
            [StatusCode.ASSIGNMENT_DELAYED],
        )
    assert first.statuses[0].detail == "Assignment delayed due to the configured initial rebalance delay."
    assert (of.group.state_name, of.group.next_deadline()) == ("Assigning", 3.0)
    of.pass_time(3.0)
    assert [len(of.beat(name, 1).assigned or ()) for name in "ab"] == [4, 4]
    for name in "ab":
        of.beat(name, LEAVE_EPOCH)
    assert statuses(of.join("c")) == [StatusCode.ASSIGNMENT_DELAYED], "it was empty again"


def test_two_assignments_are_an_interval_apart() -> None:
    of = world(assignment_interval=1.0)
    of.join("a")
    early = of.join("b")
    assert early.statuses[0].detail == "Assignment delayed due to the configured assignment interval."
    of.pass_time(1.0)
    assert of.beat("a", 2).assigned, "it is time"
    of.beat("a", 2, **own(of, "a"))
    assert len(of.beat("b", early.member_epoch).assigned or ()) == 4


def test_missing_internal_topics_are_asked_for_and_then_tasks_run() -> None:
    of = World(words=2)
    answer = of.join("a")
    assert (statuses(answer), of.group.state_name) == ([StatusCode.MISSING_INTERNAL_TOPICS], "NotReady")
    assert {topic.name: topic.partition_count for topic in answer.missing} == {"by-word": 2, "counts": 2}
    assert answer.assigned == frozenset()
    of.create_missing(answer)
    ready = of.beat("a", answer.member_epoch)
    assert (ready.statuses, len(ready.assigned or ()), of.group.state_name) == ((), 4, "Stable")


def test_tasks_stop_while_a_topic_is_missing_or_wrong() -> None:
    of = world()
    of.join("a")
    of.topics.put("words", 5)
    wrong = of.beat("a", 2)
    assert statuses(wrong) == [StatusCode.INCORRECTLY_PARTITIONED_TOPICS]
    assert (wrong.assigned, of.group.state_name) == (frozenset(), "NotReady")
    of.topics.delete("words")
    gone = of.beat("a", 2, tasks=((), ()))
    assert statuses(gone) == [StatusCode.MISSING_SOURCE_TOPICS]
    of.topics.put("words", 4)
    assert len(of.beat("a", gone.member_epoch).assigned or ()) == 8


def test_a_source_without_internal_topics_grows() -> None:
    of = World(words=2)
    of.join("a", MAPPED)
    of.topics.put("words", 4)
    assert of.names_of(of.beat("a", 2).assigned) == ["0_0", "0_1", "0_2", "0_3"]


def test_a_topology_does_not_change_and_a_stale_one_hears_so() -> None:
    of = world()
    newer = topology(*COUNT.subtopologies, epoch=1)
    of.join("a", newer)
    other = of.join("b", topology(sub("0", ["words"]), epoch=1))
    assert (other.code, other.message) == (ErrorCode.invalid_request, "Topology updates are not supported yet.")
    assert of.join("b", topology(*COUNT.subtopologies, epoch=2)).code is ErrorCode.invalid_request
    stale = of.join("b", COUNT)
    assert statuses(stale) == [StatusCode.STALE_TOPOLOGY]
    assert stale.statuses[0].detail == "The member's topology epoch 0 is behind the group's topology epoch 1."
    assert of.beat("a", 2).statuses == ()


def test_an_invalid_topology_changes_nothing() -> None:
    of = world()
    answer = of.join("a", topology(sub("1", repartition=[internal("r")], sinks=["r"])))
    assert answer.code is ErrorCode.streams_invalid_topology
    assert (of.group.topology, len(of.group.roster), of.saves) == (None, 0, [])


def test_one_member_stops_the_whole_application() -> None:
    of = world()
    of.join("a")
    of.join("b")
    of.beat("a", 2, shuts_down=True)
    of.beat("b", 3, shuts_down=True)
    (status,) = of.beat("b", 3).statuses
    assert status.code is StatusCode.SHUTDOWN_APPLICATION
    assert status.detail.startswith("Streams group member a encountered a fatal error")
    of.move()
    assert statuses(of.beat("b", 3)) == [StatusCode.SHUTDOWN_APPLICATION], "the next coordinator knows it"
    of.beat("a", LEAVE_EPOCH)
    assert statuses(of.beat("b", 3)) == [StatusCode.SHUTDOWN_APPLICATION]
    of.beat("b", LEAVE_EPOCH)
    assert of.join("c").statuses == ()


def test_a_member_that_leaves_may_stop_the_application() -> None:
    of = world()
    of.join("a")
    of.join("b")
    left = of.beat("a", LEAVE_EPOCH, shuts_down=True)
    assert (left.code, left.member_epoch) == (ErrorCode.none, LEAVE_EPOCH)
    assert statuses(of.beat("b", 3)) == [StatusCode.SHUTDOWN_APPLICATION]


def test_standbys_follow_the_config_and_never_share_a_process() -> None:
    of = world(standbys=1)
    of.join("a", process_id="p")
    of.join("b", process_id="p")
    assert {name[-1] for name in of.names_of(of.group.target_of("a"))} & {"s"} == set()
    of.configs = replace(of.configs, standbys=0)
    before = of.group.target.group_epoch
    of.beat("a", 2)
    assert of.group.target.group_epoch == before + 1, "another number of standbys is another assignment"


def test_a_standby_becomes_active_after_it_was_given_up() -> None:
    of = world(standbys=1)
    for name in "ab":
        of.join(name)
    for _ in range(4):
        for name in "ab":
            member = of.group.roster.get(name)
            assert member is not None
            of.beat(name, member.epoch, **own(of, name))
    assert of.group.state_name == "Stable"
    standby = next(key for key in sorted(of.group.target_of("b")) if of.names_of([key])[0].endswith("s"))
    of.beat("a", LEAVE_EPOCH)
    member = of.group.roster.get("b")
    assert member is not None
    asked = of.beat("b", member.epoch)
    assert standby not in (asked.assigned or ()), "it gives the standby up first"
    of.beat("b", member.epoch, **own(of, "b"))
    member = of.group.roster.get("b")
    assert member is not None
    of.beat("b", member.epoch, **own(of, "b"))
    assert of.names_of([standby])[0].rstrip("s") in of.names_of(of.group.roster.get("b").assigned)  # type: ignore[union-attr]


def test_members_hear_of_endpoints_that_moved() -> None:
    of = world()
    here, there = QueryEndpoint("h", 1), QueryEndpoint("t", 2)
    first = of.join("a", endpoint=here, endpoint_epoch=-1)
    assert first.endpoint_epoch == 0, "as Kafka: the first answer of a new group has epoch 0"
    assert first.endpoints is not None
    (said,) = first.endpoints
    assert (said.endpoint, said.standby) == (here, {})
    assert said.active == {"words": [0, 1, 2, 3], "by-word": [0, 1, 2, 3]}
    assert of.beat("a", 2, endpoint_epoch=0).endpoints is None
    second = of.join("b", endpoint=there, endpoint_epoch=-1)
    assert second.endpoint_epoch == 1
    told = of.beat("a", 2, endpoint_epoch=0)
    assert told.endpoint_epoch == 2, "its own tasks changed, too"
    assert [each.endpoint for each in told.endpoints or ()] == [there, here]
    of.move()
    assert of.beat("a", 2, endpoint_epoch=2).endpoint_epoch == 2


def test_offsets_are_taken_from_members_of_the_epoch_and_for_tasks_they_still_have() -> None:
    of = world()
    admin, word0 = MemberRef(""), of.key_of("words", 0)
    assert of.group.check_commit(0.0, admin, OFFSET_COMMIT, [word0]) is ErrorCode.none
    assert of.group.check_fetch(admin) is ErrorCode.none
    of.join("a")
    assert of.group.check_commit(0.0, admin, OFFSET_COMMIT, [word0]) is ErrorCode.unknown_member_id
    assert of.commit("a", 2, word0) is ErrorCode.none
    assert of.commit("a", 3, word0) is ErrorCode.stale_member_epoch
    assert of.group.check_commit(0.0, MemberRef("a", None, 2), 8, [word0]) is ErrorCode.unsupported_version
    of.join("b")
    of.beat("a", 2)
    assert of.commit("a", 2, of.key_of("words", 3)) is ErrorCode.none, "it is giving it up, and commits first"
    of.beat("a", 2, **own(of, "a"))
    of.beat("b", 3)
    assert of.commit("a", 2, word0) is ErrorCode.none, "it has had it all the time"
    assert of.commit("a", 2, word0, of.key_of("words", 3)) is ErrorCode.stale_member_epoch
    assert of.commit("a", 2, of.key_of("counts", 0)) is ErrorCode.stale_member_epoch, "no task reads a changelog"
    assert of.commit("b", 2, of.key_of("words", 3)) is ErrorCode.stale_member_epoch
    assert of.group.check_fetch(MemberRef("a", None, 3)) is ErrorCode.none
    assert of.group.check_fetch(MemberRef("a", None, 2)) is ErrorCode.stale_member_epoch
    assert of.group.check_fetch(MemberRef("x", None, 2)) is ErrorCode.unknown_member_id


def test_the_next_coordinator_continues_with_the_same_tasks() -> None:
    of = world(standbys=1)
    for name in "ab":
        of.join(name, endpoint=QueryEndpoint(name, 1), client_tags=(("k", "v"),), rack_id="r")
    of.beat("a", 2)
    before = [of.group.roster.get(name) for name in "ab"]
    targets, epochs = [of.group.target_of(name) for name in "ab"], (of.group.target.group_epoch, of.group.target.epoch)
    of.move()
    assert [of.group.roster.get(name) for name in "ab"] == before
    assert [of.group.target_of(name) for name in "ab"] == targets
    assert (of.group.target.group_epoch, of.group.target.epoch) == epochs
    assert of.group.topology == COUNT
    assert of.group.next_deadline() == SESSION, "new sessions; the member that gives up has as long as before"
    assert of.beat("a", 2).code is ErrorCode.none
    of.pass_time(REBALANCE)
    assert of.group.roster.get("a") is None


def test_a_group_of_a_later_life_begins_with_a_later_epoch() -> None:
    of = world(initial_rebalance_delay=3.0)
    of.group.epochs_from(1 << 20)
    assert of.join("a").member_epoch == 1 << 20
    of.pass_time(3.0)
    assert of.beat("a", 1 << 20).member_epoch == (1 << 20) + 1
