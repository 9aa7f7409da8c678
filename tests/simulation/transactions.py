"""Seeded histories of transactional copies on the model: zombies, repeated and late requests, crashes, promotions.

Fault model: two consume-transform-produce loops copy between two partitions in both directions; sources write what they
copy. Any request may be lost, or its answer; a lost one may arrive at any later time, once more. Clients crash and
begin again under their transactional id, while what they sent is on its way; transactions time out; agents crash, and
lag behind the feed; the metastore begins a new life, and loses its last changes. The rules are policy.py's, readers'
views those of the agents' own index and locator.
Checked (Kinds): what a read_committed consumer sees at any moment, and what is left at the end, by the answers that
clients got. The same seed has the same history.
"""

from __future__ import annotations

import enum
import random
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.tail import LookupStatus, stable_part
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.api.transactions import NO_PRODUCER, ProducerEpoch, TransactionState, TransactionVerdict
from headrace.metastore.transaction_markers import marker_of
from tests.model.transaction_model import TransactionModel

DONE, FENCED = TransactionVerdict.DONE, TransactionVerdict.FENCED
HOPS = 3
"""A record is copied so often."""
READ_BYTES = 350


class Anomaly(enum.StrEnum):
    """What a history must not show."""

    G1A = "an aborted record was read"
    G1C = "two transactions read from each other"
    PRECOMMITTED = "a record was read before its transaction was committed"
    ATOMICITY = "a part of a transaction is committed"
    LOST = "an acknowledged commit is gone"
    COPIES = "offsets and output do not agree"
    ORDER = "copies are out of order"
    STUCK = "a transaction does not end"


@dataclass(eq=False)
class Attempt:
    """One transaction, as its client knows it."""

    asked: set[bool] = field(default_factory=set)
    """Ends that were sent: whether they commit."""
    acknowledged_end: bool | None = None
    """Whether the end that was acknowledged commits; None: none was."""
    files: set[uuid.UUID] = field(default_factory=set)
    """All that was ever appended."""
    read_from: set[Attempt] = field(default_factory=set)
    was_seen: bool = False
    may_be_lost: bool = False


@dataclass
class SentBatch:
    """A batch in the log: the first source of what it holds, and how often that was copied."""

    attempt: Attempt
    origin: int
    hop: int


@dataclass(eq=False)
class Client:
    """One instance of a source or of a copy; `input` None: a source."""

    name: str
    bumps: bool
    output: int
    input: int | None = None
    who: ProducerEpoch = NO_PRODUCER
    sequences: dict[int, int] = field(default_factory=dict)
    work: list[Callable[[], bool]] = field(default_factory=list)
    """Requests of the open transaction that are still to be done, in order; each says whether it was."""
    is_dead: bool = False


class TransactionSimulation:
    """One history; `problems` has what was found."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.model = TransactionModel(2)
        self.batches: dict[uuid.UUID, SentBatch] = {}
        self.attempts: list[Attempt] = []
        self.problems: Counter[Anomaly] = Counter()
        self.late: list[Callable[[], object]] = []
        self.origins = 0
        self.history: list[str] = []
        self.agents = [self._agent() for _ in range(2)]
        self.clients = [
            Client("source-0", True, 0),
            Client("source-1", False, 1),
            Client("copy-0", True, 1, 0),
            Client("copy-1", False, 0, 1),
        ]

    async def run(self, steps: int) -> Counter[Anomaly]:
        """The history, and its end when everything is quiet."""
        for _ in range(steps):
            await self._step()
        for log in (self.model.stored.logs[key] for key in range(2)):
            self.history.append(repr(log.extents))
        await self._quiet()
        return self.problems

    def _agent(self) -> tuple[TailIndex, Locator]:
        index = TailIndex(1, extents_max=self.rng.choice([3, 1_000]))
        return index, Locator(index, self.model, self.rng, FetchMetrics(CollectorRegistry()))  # type: ignore[arg-type]

    async def _step(self) -> None:
        self.model.now_ms += self.rng.randrange(40)
        draw = self.rng.random()
        if draw < 0.55:
            await self._client_step(self.rng.choice(self.clients))
        elif draw < 0.7:
            index, _ = self.rng.choice(self.agents)
            index.apply(self.model.poll(index.heads))
        elif draw < 0.82:
            await self.read(self.rng.randrange(2), self.rng.randrange(8))
        elif draw < 0.9 and self.late:
            self.late.pop(self.rng.randrange(len(self.late)))()
        elif draw < 0.94:
            self._crash(self.rng.randrange(len(self.clients)))
        elif draw < 0.96:
            self.agents[self.rng.randrange(2)] = self._agent()
        elif draw < 0.975:
            self._time_out()
        elif draw < 0.99:
            self.model.keep()
        else:
            self._new_life()

    # clients

    async def _client_step(self, client: Client) -> None:
        if client.is_dead:
            return
        if client.who == NO_PRODUCER:
            verdict, client.who = self.model.init_producer(client.name)
            assert verdict is DONE
            client.sequences.clear()
        elif client.work:
            if client.work[0]():
                del client.work[0]
        else:
            await self._begin(client)

    async def _begin(self, client: Client) -> None:
        """Decide what the next transaction does."""
        attempt = Attempt()
        payloads: list[tuple[int, int]] = []
        position = None
        if client.input is None:
            for _ in range(self.rng.randint(1, 2)):
                self.origins += 1
                payloads.append((self.origins, 0))
        else:
            position = self.model.position(client.name)
            if position is None:
                return
            found, position = await self._committed(client.input, position)
            if not found and position == self.model.position(client.name):
                return
            attempt.read_from = {batch.attempt for batch in found}
            payloads = [(batch.origin, batch.hop + 1) for batch in found if batch.hop < HOPS]
        self.attempts.append(attempt)
        group = frozenset({client.name} if client.input is not None else ())
        if not client.bumps:
            self._plan(client, lambda: self.model.add(client.name, who, frozenset({client.output}), group))
        who = client.who
        for origin, hop in payloads:
            sequence = client.sequences.get(client.output, 0)
            client.sequences[client.output] = sequence + 1
            self._plan(client, lambda o=origin, h=hop, s=sequence: self._produce(client, who, attempt, s, o, h))  # type: ignore[misc]
        if position is not None:
            at = position
            self._plan(
                client,
                lambda: self.model.commit_offset(client.name, who, client.name, at, adds=client.bumps),
                may_be_late=client.bumps,
            )
        commits = self.rng.random() < 0.75
        if self.rng.random() < 0.2:
            client.work.append(lambda: True)  # a pause
        client.work.append(lambda: self._end(client, who, attempt, commits))

    def _produce(
        self, client: Client, who: ProducerEpoch, attempt: Attempt, sequence: int, origin: int, hop: int
    ) -> TransactionVerdict:
        verdict, file_id = self.model.produce(client.output, client.name, who, sequence, adds=client.bumps)
        if file_id is not None:
            self.batches[file_id] = SentBatch(attempt, origin, hop)
            attempt.files.add(file_id)
        return verdict

    def _plan(self, client: Client, request: Callable[[], TransactionVerdict], *, may_be_late: bool = True) -> None:
        client.work.append(lambda: self._sent(client, request, self.late if may_be_late else []))

    def _sent(
        self, client: Client, request: Callable[[], TransactionVerdict], late: list[Callable[[], object]]
    ) -> bool:
        """Return whether the client got an answer that lets it continue; it gives up after a refusal."""
        draw = self.rng.random()
        if draw < 0.1:  # lost for now: it may arrive at any time
            late.append(request)
            return False
        verdict = request()
        if draw < 0.2:  # the answer is lost, and a copy of the request is still on its way
            late.append(request)
            return False
        if verdict is not DONE:
            self._give_up(client)
            return False
        return True

    def _end(self, client: Client, who: ProducerEpoch, attempt: Attempt, commits: bool) -> bool:
        def request() -> tuple[TransactionVerdict, ProducerEpoch]:
            return self.model.end(client.name, who, commits=commits, bumps=client.bumps)

        attempt.asked.add(commits)
        # a late end, or late offsets, of a producer that keeps its epoch would count for its next transaction, in Kafka
        # too: this is why KIP-890 is there
        late = self.late if client.bumps else []
        draw = self.rng.random()
        if draw < 0.15:
            late.append(request)
            return False
        verdict, after = request()
        if draw < 0.3:
            late.append(request)
            return False
        if verdict is not DONE:
            self._give_up(client)
            return False
        attempt.acknowledged_end = commits
        if after != client.who:
            client.who = after
            client.sequences.clear()
        return True

    def _give_up(self, client: Client) -> None:
        """Do the same as clients do after a fatal error: begin again with InitProducerId."""
        client.who, client.work = NO_PRODUCER, []

    def _crash(self, number: int) -> None:
        """Crash: what it sent may still arrive; another instance begins."""
        old = self.clients[number]
        old.is_dead = True
        self.late += [request for request in old.work[:1] if old.bumps and self.rng.random() < 0.5]
        self.clients[number] = Client(old.name, old.bumps, old.output, old.input)

    def _time_out(self) -> None:
        for name in sorted(self.model.stored.rows):
            self.model.time_out(name)

    def _new_life(self) -> None:
        self.model.begin_life()
        self.agents = [self._agent() for _ in self.agents]  # what a reader got of the lost changes, it keeps
        for attempt in self.attempts:
            attempt.may_be_lost = True

    # readers

    async def read(self, key: int, offset: int) -> None:
        """A consumer reads at any agent."""
        await self._committed(key, min(offset, self.model.stored.logs[key].end))

    async def _committed(self, key: int, offset: int) -> tuple[list[SentBatch], int]:
        """Return what a read_committed consumer gets in one answer, and its next position (KIP-98)."""
        query = ExtentQuery(key, offset, READ_BYTES)
        _, locator = self.rng.choice(self.agents)
        (found,) = await locator.locate([query])
        if found.status is not LookupStatus.FOUND:
            return [], offset
        found = stable_part(query, found)
        waiting = sorted(found.aborted, key=lambda one: one.first_offset)
        skipped: dict[int, bool] = defaultdict(bool)
        seen: list[SentBatch] = []
        for extent in found.extents:
            if extent.base_offset >= found.last_stable_offset:
                break
            while waiting and waiting[0].first_offset <= extent.last_offset:
                skipped[waiting.pop(0).producer_id] = True
            marker = marker_of(extent.source)
            offset = extent.last_offset + 1
            if marker is not None:
                skipped[marker.producer_id] = False
            elif not skipped[self.producer_of(extent.source)]:
                seen.append(self.batches[extent.source])
        for batch in seen:
            self._saw(batch.attempt)
        return seen, offset

    def producer_of(self, file_id: uuid.UUID) -> int:
        """Return the producer by the batch's header."""
        return self.producers[file_id]

    @property
    def producers(self) -> dict[uuid.UUID, int]:
        return self.model.producers

    def _saw(self, attempt: Attempt) -> None:
        attempt.was_seen = True
        if True not in attempt.asked:
            self.problems[Anomaly.G1A if attempt.asked else Anomaly.PRECOMMITTED] += 1
        elif attempt.acknowledged_end is False:
            self.problems[Anomaly.G1A] += 1

    # the end

    async def _quiet(self) -> None:
        """Late requests arrive, transactions end, and what is left is compared with the answers that clients got."""
        for request in self.late:
            request()
        self.model.now_ms += 10_000
        self._time_out()
        if any(row.state is TransactionState.ONGOING for row in self.model.stored.rows.values()):
            self.problems[Anomaly.STUCK] += 1
        visible = {key: self._visible(key) for key in range(2)}
        left = {file_id for _, files in visible.items() for _, file_id in files}
        for attempt in self.attempts:
            mine = attempt.files & left
            if (
                mine
                and mine != attempt.files
                and not (attempt.may_be_lost and attempt.acknowledged_end is None and not attempt.was_seen)
            ):
                self.problems[Anomaly.ATOMICITY] += 1
            if mine and True not in attempt.asked:
                self.problems[Anomaly.G1A if attempt.asked else Anomaly.PRECOMMITTED] += 1
            if mine and attempt.acknowledged_end is False:
                self.problems[Anomaly.G1A] += 1
            if attempt.acknowledged_end is True and attempt.files and not mine and not attempt.may_be_lost:
                self.problems[Anomaly.LOST] += 1
            if attempt.was_seen and not mine and not attempt.may_be_lost:
                self.problems[Anomaly.G1A] += 1
        self._check_cycles()
        for copy in self.clients:
            if copy.input is not None:
                self._check_copies(copy.input, copy.output, self.model.stored.positions.get(copy.name, 0), visible)

    def _visible(self, key: int) -> list[tuple[int, uuid.UUID]]:
        """(offset, file) of committed batches: by the markers alone."""
        files: list[tuple[int, uuid.UUID]] = []
        waiting: dict[int, list[tuple[int, uuid.UUID]]] = defaultdict(list)
        for extent in self.model.stored.logs[key].extents:
            marker = marker_of(extent.source)
            if marker is None:
                waiting[self.producer_of(extent.source)].append((extent.base_offset, extent.source))
            else:
                files += waiting.pop(marker.producer_id, []) if marker.commits else []
                waiting.pop(marker.producer_id, None)
        if waiting:
            self.problems[Anomaly.STUCK] += 1
        return sorted(files)

    def _check_cycles(self) -> None:
        for attempt in self.attempts:
            if any(attempt in other.read_from for other in attempt.read_from):
                self.problems[Anomaly.G1C] += 1

    def _check_copies(self, key: int, output: int, position: int, visible: dict[int, Any]) -> None:
        """Each committed record below the group's position was copied once, in order, and no other."""
        name = f"copy-{key}"
        wanted = [
            (batch.origin, batch.hop + 1)
            for offset, file_id in visible[key]
            if offset < position and (batch := self.batches[file_id]).hop < HOPS
        ]
        found = [
            (batch.origin, batch.hop)
            for _, file_id in visible[output]
            if (batch := self.batches[file_id]).hop > 0 and self.model.names[file_id] == name
        ]
        if sorted(wanted) != sorted(found):
            self.problems[Anomaly.COPIES] += 1
        elif wanted != found:
            self.problems[Anomaly.ORDER] += 1


async def simulate(seeds: range, steps: int = 350) -> dict[int, Counter[Anomaly]]:
    """Return what was found, by seed; only seeds with problems."""
    found = {}
    for seed in seeds:
        problems = await TransactionSimulation(seed).run(steps)
        if problems:
            found[seed] = problems
    return found
