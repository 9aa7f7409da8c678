"""The simulated idempotent producer does what the real libraries do: a lenient client would hide bugs."""

from __future__ import annotations

import uuid

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
    assert lane.out_of_order(second), "expected, after a gap"
    fail(lane, second)
    assert send_all(lane, now=31.0, gives_up_after=20.0) == [second]
    assert (lane.epoch, second.sequence, lane.next_sequence) == (1, 0, 2)


def test_out_of_order_is_spurious_only_when_everything_before_was_acknowledged() -> None:
    lane = lane_of(Style.PATIENT, 2)
    first, second = send_all(lane)
    second.on_wire = False
    assert lane.out_of_order(second)
    lane.succeeded(first)
    fail(lane, second)
    send_all(lane)
    assert not lane.out_of_order(second)


def test_sequences_wrap_to_zero() -> None:
    lane = lane_of(Style.JAVA, 3, count=2, first_sequence=SEQUENCES - 3)
    assert [pending.sequence for pending in send_all(lane)] == [SEQUENCES - 3, SEQUENCES - 1, 1]
