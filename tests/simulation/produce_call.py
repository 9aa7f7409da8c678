"""One Produce request of a simulated client, with everything that its answers say written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation import protocol
from tests.simulation.messages import Attempt, Batch
from tests.simulation.metadata import Place
from tests.simulation.network import Exchange, SimulatedConnection

if TYPE_CHECKING:
    from tests.simulation.world import World


class Sent(NamedTuple):
    """The contents of a request: enough to deliver it again."""

    by_id: bool
    body: bytes
    attempts: dict[Place, Attempt]


class Identity(NamedTuple):
    """Producer fields of a batch header; all -1 without idempotence."""

    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1


async def produce(
    world: World,
    connection: SimulatedConnection,
    batches: Mapping[Place, tuple[Batch, Identity]],
    *,
    by_id: bool,
    timeout_ms: int,
    patience: float,
) -> dict[Place, Attempt]:
    """Send one batch per place, wait at most `patience` seconds. An attempt without `code` has no answer."""
    sent = make_request(world, connection, batches, by_id=by_id, timeout_ms=timeout_ms)
    exchange = await connection.ask(protocol.PRODUCE, version_of(sent), sent.body, patience)
    write_answers(world, sent, exchange)
    return sent.attempts


def make_request(
    world: World,
    connection: SimulatedConnection,
    batches: Mapping[Place, tuple[Batch, Identity]],
    *,
    by_id: bool,
    timeout_ms: int,
    acks: int = -1,
) -> Sent:
    """The request, its attempts already on record."""
    attempts, data = {}, {}
    for place, (batch, identity) in batches.items():
        attempt = Attempt(batch, *identity, connection.number, world.loop.time(), connection.owner)
        batch.attempts.append(attempt)
        attempts[place] = attempt
        data[place] = batch.encode(*identity)
        world.note("send", connection.number, batch.number, *identity)
    body = protocol.encode_produce(data, by_id=by_id, acks=acks, timeout_ms=timeout_ms)
    sent = Sent(by_id, body, attempts)
    if all(attempt.producer_id >= 0 for attempt in attempts.values()):
        world.repeatable.append(sent)
    return sent


def deliver_again(world: World, connection: SimulatedConnection, sent: Sent) -> None:
    """A delayed duplicate: the same bytes once more, and no client waits for the answer."""
    for original in sent.attempts.values():
        sent_at = world.loop.time()
        repeated = Attempt(
            original.batch, *original.identity, connection.number, sent_at, connection.owner, is_replay=True
        )
        original.batch.attempts.append(repeated)
    world.note("replay", connection.number, *(attempt.batch.number for attempt in sent.attempts.values()))
    connection.send(protocol.PRODUCE, version_of(sent), sent.body)


def write_answers(world: World, sent: Sent, exchange: Exchange) -> None:
    """Complete the attempts with what came back, if anything did."""
    frame = exchange.answer.result()
    places = list(sent.attempts)
    answers = {} if frame is None else protocol.read_produce(frame, places, by_id=sent.by_id)
    for place, attempt in sent.attempts.items():
        attempt.arrived_at, attempt.settled_at = exchange.arrived_at, exchange.settled_at
        answer = answers.get(place)
        if answer is not None:
            attempt.code, attempt.base_offset, attempt.append_time_ms = answer
            attempt.answered_at = world.loop.time()
        world.note("answer", attempt.batch.number, *(answer or ("none",)))


def version_of(sent: Sent) -> int:
    """The version of Produce that the request was written in."""
    return protocol.PRODUCE_BY_ID if sent.by_id else protocol.PRODUCE_BY_NAME
