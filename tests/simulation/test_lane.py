"""The simulated idempotent producer does what the real libraries do: a lenient client would hide bugs."""

from __future__ import annotations

import uuid

from headrace.agent.produce.refused_sequences import ELSEWHERE_SECONDS
from tests.simulation.lane import IN_FLIGHT_MAX, Lane, Pending, Style
from tests.simulation.messages import SEQUENCES, Messages
from tests.simulation.metadata import Place, Topic

PLACE = Place(Topic("t", uuid.UUID(int=1), 1, 1, is_mortal=False, stamps=False), 0)
NEVER = 1e9


def lane_of(style: Style, batches: int, *, count: int = 1, first_sequence: int = 0) -> Lane:
    lane = Lane(PLACE, style, first_sequence)
    messages = Messages()
    for _ in range(batches):
        lane.add(messages.create("p", PLACE, count, 0, is_idempotent=True))
    return lane


def send_all(lane: Lane, now: float = 0.0, gives_up_after: float = NEVER) -> list[Pending]:
    sent = []
    while (pending := lane.next(now, gives_up_after)) is not None:
        lane.sending(pending, now)
        sent.append(pending)
    return sent


def fail(lane: Lane, *failed: Pending) -> None:
    for pending in failed:
        pending.on_wire = False
        lane.failed(pending, 0.0)


def test_never_more_than_five_ahead_of_the_first_unresolved_batch() -> None:
    lane = lane_of(Style.JAVA, 8)
    sent = send_all(lane)
    assert [pending.sequence for pending in sent] == list(range(IN_FLIGHT_MAX))
    for pending in sent[1:]:
        lane.succeeded(pending)
    assert send_all(lane) == [], "the first one is still unresolved"
    lane.succeeded(sent[0])
    assert [pending.sequence for pending in send_all(lane)] == [5, 6, 7]


def test_java_repeats_the_first_unresolved_batch_alone() -> None:
    lane = lane_of(Style.JAVA, 3)
    first, second, third = send_all(lane)
    fail(lane, second)
    assert send_all(lane) == []
    lane.succeeded(first)
    assert send_all(lane) == [second]
    assert third.on_wire
    assert second.sequence == 1


def test_librdkafka_lets_everything_end_and_repeats_all_in_order() -> None:
    lane = lane_of(Style.PATIENT, 3)
    first, second, third = send_all(lane)
    fail(lane, third, first)
    assert send_all(lane) == []
    fail(lane, second)
    assert send_all(lane) == [first, second, third]


def test_java_gives_up_and_renumbers_the_rest_under_the_next_epoch() -> None:
    lane = lane_of(Style.JAVA, 3, count=2)
    first, second, third = send_all(lane)
    fail(lane, first, second, third)
    assert send_all(lane, now=10.0, gives_up_after=20.0) == [first]
    fail(lane, first)
    assert send_all(lane, now=30.0, gives_up_after=20.0) == []
    assert not lane.queue, "all of them were too old"
    assert (lane.epoch, lane.next_sequence) == (1, 0)


def test_a_gap_ends_in_a_bump_once_the_next_one_is_out_of_order() -> None:
    lane = lane_of(Style.JAVA, 2, count=2)
    (first,) = send_all(lane)[:1]
    second = lane.queue[1]
    second.first_sent_at = 25.0
    fail(lane, first, second)
    assert send_all(lane, now=30.0, gives_up_after=20.0) == [second]
    assert second.sequence == 2
    second.on_wire = False
    assert lane.out_of_order(second, 0.0), "expected, after a gap"
    fail(lane, second)
    assert send_all(lane, now=31.0, gives_up_after=20.0) == [second]
    assert (lane.epoch, second.sequence, lane.next_sequence) == (1, 0, 2)


def test_out_of_order_is_spurious_unless_an_earlier_batch_is_unresolved_for_long() -> None:
    lane = lane_of(Style.PATIENT, 2)
    first, second = send_all(lane)
    second.on_wire = False
    assert not lane.out_of_order(second, 1.0)
    assert lane.out_of_order(second, ELSEWHERE_SECONDS)
    lane.succeeded(first)
    fail(lane, second)
    send_all(lane, ELSEWHERE_SECONDS)
    assert not lane.out_of_order(second, 3 * ELSEWHERE_SECONDS)


def test_java_begins_another_epoch_at_once_if_the_next_batch_is_out_of_order() -> None:
    lane = lane_of(Style.JAVA, 3)
    first, second, third = send_all(lane)
    second.on_wire = False
    lane.succeeded(first)
    lane.out_of_order(second, 0.0)
    assert (lane.epoch, second.sequence, third.sequence) == (1, 0, 1)
    assert third.on_wire
    fail(lane, second, third)
    assert send_all(lane) == [second]


def test_sequences_wrap_to_zero() -> None:
    lane = lane_of(Style.JAVA, 3, count=2, first_sequence=SEQUENCES - 3)
    assert [pending.sequence for pending in send_all(lane)] == [SEQUENCES - 3, SEQUENCES - 1, 1]


def heir_of(before: Lane) -> Lane:
    lane = Lane(PLACE, before.style, before.next_sequence)
    lane.go_on_from(before)
    messages = Messages()
    for pending in before.leave():
        copy = messages.create("p", PLACE, pending.batch.count, 0, is_idempotent=True, again=pending.batch)
        lane.send_again(copy, pending)
    return lane


def end_in_order(lane: Lane, *ended: Pending) -> None:
    for pending in ended:
        pending.on_wire = False
        lane.succeeded(pending)


def test_what_a_deleted_topic_acknowledged_is_a_gap_in_the_next_one() -> None:
    before = lane_of(Style.PATIENT, 3)
    first, second, third = send_all(before)
    fail(before, first, third)
    end_in_order(before, second)
    lane = heir_of(before)
    (again,) = send_all(lane)
    end_in_order(lane, again)
    (behind,) = send_all(lane)
    behind.on_wire = False
    assert lane.out_of_order(behind, 0.0), "the batch between them is in the deleted topic only"
    fail(lane, behind)
    assert send_all(lane) == [behind]
    assert (lane.epoch, behind.sequence) == (1, 0)
    behind.on_wire = False
    assert not lane.out_of_order(behind, 0.0), "nothing is missing in the next epoch"


def test_the_last_one_that_a_deleted_topic_acknowledged_is_a_gap_before_what_is_new() -> None:
    before = lane_of(Style.PATIENT, 2)
    first, second = send_all(before)
    fail(before, first)
    end_in_order(before, second)
    lane = heir_of(before)
    end_in_order(lane, *send_all(lane))
    lane.add(Messages().create("p", PLACE, 1, 0, is_idempotent=True))
    (new,) = send_all(lane)
    new.on_wire = False
    assert new.sequence == 2
    assert lane.out_of_order(new, 0.0)


def test_a_deleted_topic_that_acknowledged_none_in_between_leaves_no_gap() -> None:
    before = lane_of(Style.PATIENT, 3)
    first, second, third = send_all(before)
    end_in_order(before, first)
    fail(before, second, third)
    lane = heir_of(before)
    (again,) = send_all(lane)
    end_in_order(lane, again)
    (last,) = send_all(lane)
    last.on_wire = False
    assert (again.sequence, last.sequence) == (1, 2)
    assert not lane.out_of_order(last, 0.0)


def test_what_was_given_up_in_a_deleted_topic_is_a_gap_in_the_next_one() -> None:
    before = lane_of(Style.JAVA, 2)
    first, second = send_all(before)
    second.first_sent_at = 25.0
    fail(before, first, second)
    before.next(30.0, 20.0)
    lane = heir_of(before)
    (again,) = send_all(lane)
    again.on_wire = False
    assert again.sequence == 1
    assert lane.out_of_order(again, 0.0)
    fail(lane, again)
    assert send_all(lane) == [again]
    assert (lane.epoch, again.sequence) == (1, 0)


def test_a_wrapped_sequence_does_not_begin_a_topic_that_was_created_again() -> None:
    lane = heir_of(lane_of(Style.JAVA, 0, first_sequence=SEQUENCES - 2))
    messages = Messages()
    for _ in range(3):
        lane.add(messages.create("p", PLACE, 1, 0, is_idempotent=True))
    first, second = send_all(lane)
    end_in_order(lane, first)
    (wrapped,) = send_all(lane)
    assert (first.sequence, second.sequence, wrapped.sequence) == (SEQUENCES - 2, SEQUENCES - 1, 0)
