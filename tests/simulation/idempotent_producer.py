"""An idempotent producer as the real libraries are: in flight, retries, sequences, epochs. lane.py has one partition.

Two styles. PATIENT (librdkafka): after a failure it lets everything in flight end, then sends again, in
order, all that is unresolved; it never gives a batch up. If a batch is out of order while an earlier one is
unresolved, it lets everything in flight end in all partitions, bumps the epoch, and sends all that is unresolved
under it, also what may be stored (rd_kafka_handle_Produce_error, rd_kafka_idemp_drain_epoch_bump).
JAVA (Kafka's own): a failed batch is sent again only when it is the first unresolved one; a batch that is too old is
given up, and the gap that this may leave is closed by bumping the epoch and renumbering the unresolved batches, from 0.
If a batch is out of order that is the next one by now, it does so at once, while others are on the wire.
Both: nothing is sent that is 5 or more batches after the first unresolved one, an epoch's attempts
all carry the same sequence, and any agent will do, so that neighbours may travel through different ones.
What no server may ever tell them is reported: out of order to a batch that was sent when everything
before it was acknowledged, a current epoch that is fenced, an existing topic that is unknown.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from tests.model.producer_model import ProducerState
from tests.simulation import protocol
from tests.simulation.lane import Lane, Pending, Style
from tests.simulation.leaders import Leaders
from tests.simulation.messages import OK, SEQUENCES, TIMED_OUT, Attempt, Batch
from tests.simulation.metadata import Place
from tests.simulation.network import SimulatedConnection
from tests.simulation.problems import Kind
from tests.simulation.produce_call import Identity, produce

if TYPE_CHECKING:
    from tests.simulation.world import World

OUT_OF_ORDER = int(ErrorCode.out_of_order_sequence_number)
UNKNOWN = (int(ErrorCode.unknown_topic_or_partition), int(ErrorCode.unknown_topic_id))
RETRIABLE = (
    TIMED_OUT,
    int(ErrorCode.kafka_storage_error),
    int(ErrorCode.not_leader_or_follower),
    int(ErrorCode.leader_not_available),
)
BACKOFF_SECONDS = (0.01, 0.1)
BACKOFF_DOUBLINGS = 4
"""It grows with the failures one after another, as retry.backoff.max.ms lets it."""
GIVES_UP_SECONDS = (0.6, 1.5)
PAUSE_SHARE, PAUSE_SECONDS = 0.15, (0.3, 5.0, 31.0, 45.0, 65.0, 125.0, 305.0)
"""Where leaders move: how often a producer is silent, and how long. Longer than what agents remember, at times."""


class IdempotentProducer:
    """`run` sends `count` batches and returns when each is resolved."""

    def __init__(self, world: World, name: str, places: list[Place], style: Style, count: int) -> None:
        self.name = name
        self.producer_id = -1
        self._world = world
        self._style = style
        self._count = count
        self._rng = rng = random.Random(world.client_rng.getrandbits(64))
        self._places = places
        self._lanes: list[Lane] = []
        self._by_id = any(place.topic.is_mortal for place in places) or rng.random() < 0.5
        self._timeout_ms = rng.choice((300, 800, 1500))
        self._patience = rng.uniform(0.4, 1.2)
        self._gives_up_after = rng.uniform(*GIVES_UP_SECONDS)
        if world.plan.moves:
            self._patience, self._gives_up_after = 5.0, 200.0
        self._sticks = rng.choice((0.5, 0.9, 1.0))
        """How likely it is that a request goes where the one before it went."""
        self._begins_where_it_asked = rng.random() < 0.5
        """It sends its first batch over the connection that its id was given out over."""
        self._connection: SimulatedConnection | None = None
        self._leaders = Leaders(world, rng) if world.plan.moves else None
        """Whom it sends batches to, if agents differ for it."""
        self._rest = asyncio.Event()
        self._is_starting_over = False
        self._epoch = 0
        """Of all lanes of a PATIENT producer."""
        self._drains_to_bump = False

    async def run(self) -> None:
        await self._init_producer_id()
        wraps = self._rng.random() < 0.3 and not self._world.plan.failovers
        self._lanes = [self._lane(place, wraps) for place in self._places]
        for _ in range(self._count):
            await asyncio.sleep(self._rng.expovariate(1 / self._world.plan.send_interval))
            if self._leaders is not None and self._rng.random() < PAUSE_SHARE:
                left = self._world.plan.seconds - self._world.loop.time()
                await asyncio.sleep(self._rng.choice([each for each in PAUSE_SECONDS if each < left] or [0.0]))
                for lane in self._lanes:
                    self._world.nemesis.shake_leader(lane.place)
            self._create()
            self._pump()
        while self._is_starting_over or any(lane.queue for lane in self._lanes):
            self._rest.clear()
            await self._rest.wait()

    def unresolved(self) -> list[Batch]:
        return [pending.batch for lane in self._lanes for pending in lane.queue]

    async def _init_producer_id(self) -> None:
        while self.producer_id < 0:
            connection = self._world.connect(self._rng)
            body = protocol.encode_init_producer_id()
            exchange = await connection.ask(
                protocol.INIT_PRODUCER_ID, protocol.INIT_PRODUCER_ID_VERSION, body, self._patience
            )
            frame = exchange.answer.result()
            if frame is not None:
                code, producer_id = protocol.read_init_producer_id(frame)
                if code == OK:
                    self.producer_id = producer_id
                    if self._leaders is not None:
                        self._leaders.keep(connection)
                    elif self._begins_where_it_asked:
                        self._connection = connection
                    else:
                        connection.close()
                    self._world.producer_ids.append(producer_id)
                    self._world.note("producer id", self.name, producer_id)
                    return
            connection.close()
            await asyncio.sleep(self._rng.uniform(*BACKOFF_SECONDS))

    def _lane(self, place: Place, wraps: bool) -> Lane:
        """`wraps`: as if the producer had long been sending, and its sequences were about to wrap to 0."""
        lane = Lane(place, self._style, 0)
        partition = self._world.database.model.partitions.get(place.key)
        if wraps and partition is not None:
            lane.next_sequence = SEQUENCES - self._rng.randint(1, 12)
            partition.producers[self.producer_id] = ProducerState(epoch=0, next_sequence=lane.next_sequence)
        lane.epoch = self._epoch
        self._note_first(lane)
        return lane

    def _note_first(self, lane: Lane) -> None:
        first = lane.epoch, lane.first_sequence
        self._world.first_sequences.setdefault((self.producer_id, lane.place.key), first)

    def _heir_lane(self, before: Lane, heir: Place) -> Lane:
        """The topic was deleted and created again. The libraries number batches by the name of their topic: they
        continue with the next sequence, after they have sent again what is unresolved.
        """
        lane = Lane(heir, self._style, before.next_sequence)
        lane.go_on_from(before)
        for pending in before.leave():
            lane.send_again(self._again(pending.batch, heir), pending)
        self._note_first(lane)
        return lane

    def _again(self, batch: Batch, heir: Place) -> Batch:
        """The batch for another topic of the name. A failover may bring back a topic that the batch was sent to: there
        it is the batch that it was, with the same records under the same sequence, and may be stored already."""
        create = self._world.messages.create
        return batch.in_place(heir) or create(
            self.name, heir, batch.count, batch.timestamp, is_idempotent=True, again=batch
        )

    def _create(self) -> None:
        """A batch for some partition; a lane of a deleted topic is replaced by one of its successor, or of the same
        topic if a failover has brought that back."""
        number = self._rng.randrange(len(self._lanes))
        lane = self._lanes[number]
        if lane.place.topic.deleted_at is not None or lane.has_left:
            heir = self._world.heir_of(lane.place)
            if heir is None:
                return
            lane = self._lanes[number] = self._heir_lane(lane, heir)
        lane.add(self._world.create_batch(self.name, lane.place, self._rng, is_idempotent=True))

    def _pump(self) -> None:
        """Send all that may be sent."""
        if self._is_starting_over:
            return
        now = self._world.loop.time()
        if self._drains_to_bump and not self._bump_all():
            return
        while True:
            ready: dict[Lane, Pending] = {}
            for lane in self._lanes:
                pending = lane.next(now, self._gives_up_after)
                if pending is None or not self._goes_along(lane, ready):
                    continue
                ready[lane] = pending
            if not ready:
                break
            connection = self._pick_connection(next(iter(ready)))
            if connection.is_closed:
                self._wake_later(self._rng.uniform(*BACKOFF_SECONDS))
                break
            for lane, pending in ready.items():
                lane.sending(pending, now)
            self._world.spawn(self._send(connection, ready))
        self._rest.set()

    async def _send(self, connection: SimulatedConnection, ready: dict[Lane, Pending]) -> None:
        batches = {
            lane.place: (pending.batch, Identity(self.producer_id, lane.epoch, pending.sequence))
            for lane, pending in ready.items()
        }
        attempts = await produce(
            self._world,
            connection,
            batches,
            by_id=self._by_id,
            timeout_ms=self._timeout_ms,
            patience=self._patience,
        )
        for lane, pending in ready.items():
            pending.on_wire = False
            self._take(lane, pending, attempts[lane.place])
        self._pump()

    def _take(self, lane: Lane, pending: Pending, attempt: Attempt) -> None:
        """Do what the answer asks for."""
        code = attempt.code
        if pending not in lane.queue:  # its topic is gone
            return
        if code == OK:
            lane.succeeded(pending)
            return
        if code in UNKNOWN and lane.place.topic.deleted_at is not None:
            lane.topic_is_gone()
            return
        if code == OUT_OF_ORDER and self._world.past:
            self._meet_a_loss(lane, pending)
            return
        now = self._world.loop.time()
        if self._leaders is not None:
            self._leaders.look_soon()
        if attempt.epoch < lane.epoch:  # Java began another epoch while it was on the wire
            lane.failed(pending, now)
            return
        is_back = (
            code in UNKNOWN and lane.place.topic.is_mortal and bool(self._world.past)
        )  # an agent does not know yet
        if code == OUT_OF_ORDER and self._style is Style.PATIENT and lane.is_behind(pending):
            self._drains_to_bump = True
        legal = code is None or is_back or code in RETRIABLE
        if code == OUT_OF_ORDER:
            legal = lane.out_of_order(pending, now)
        if not legal:
            self._world.report(Kind.SPURIOUS, f"{pending.batch} code={code} sequence={attempt.identity}")
        backoff = self._rng.uniform(*BACKOFF_SECONDS) * 2 ** min(lane.failures, BACKOFF_DOUBLINGS)
        lane.failed(pending, now + backoff)
        self._wake_later(backoff)

    def _bump_all(self) -> bool:
        """Begin the next epoch in all lanes, unless something is on the wire; whether it has begun."""
        if not all(lane.is_drained for lane in self._lanes):
            return False
        self._drains_to_bump = False
        self._epoch += 1
        self._world.note("epoch", self.name, self._epoch)
        self._world.epoch_bumps += 1
        for lane in self._lanes:
            lane.begin_epoch(self._epoch)
        return True

    def _meet_a_loss(self, lane: Lane, pending: Pending) -> None:
        """The metastore was replaced, and may lack batches that it had acknowledged. Java bumps the epoch. Users of
        librdkafka, which stops, begin with another producer, and without what is unresolved."""
        if self._style is Style.JAVA:
            lane.bump_soon()
            lane.failed(pending, self._world.loop.time())
        elif not self._is_starting_over:
            self._is_starting_over = True
            self._world.spawn(self._start_over())
        self._wake_later(self._rng.uniform(*BACKOFF_SECONDS))

    async def _start_over(self) -> None:
        for lane in self._lanes:
            lane.queue.clear()
        self.producer_id = -1
        self._epoch, self._drains_to_bump = 0, False
        await self._init_producer_id()
        self._lanes = [self._lane(lane.place, False) for lane in self._lanes]
        self._is_starting_over = False
        self._pump()

    def _wake_later(self, seconds: float) -> None:
        self._world.later(seconds + 0.001, self._pump)

    def _goes_along(self, lane: Lane, ready: dict[Lane, Pending]) -> bool:
        """Return whether the lane's batch may be in one request with those of the other lanes."""
        if not ready:
            return True
        if self._leaders is None:
            return self._rng.random() < 0.7
        return self._leaders.of(lane.place) == self._leaders.of(next(iter(ready)).place)

    def _pick_connection(self, lane: Lane) -> SimulatedConnection:
        """Return a connection for a request that begins with the lane's batch."""
        connection = self._connection
        if self._leaders is not None:
            return self._leaders.connection(lane.place)
        if connection is None or connection.is_closed or self._rng.random() > self._sticks:
            connection = self._connection = self._world.connect(self._rng)
        return connection
