"""A fetch session is of one connection and one principal: no other client reads it, moves it on or ends it.

Fault model: a run of random requests on several connections, each of which names any session id that was ever given
out, with the epoch that its owner would send; connections end at any time. Planted bugs show that a run finds them.
"""

from __future__ import annotations

import random

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.sessions import FULL_EPOCH, LAST_EPOCH, SESSION_ID_MAX, FetchSessions
from headrace.protocol.fetch_codec import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.request import ClientConnection
from tests.agent.fetch.fetch_world import World
from tests.manual_clock import ManualClock
from tests.planted import PlantedBugs, Trial

pytestmark = pytest.mark.requirement("X2")
SEEDS = range(20)
STEPS = 200
PRINCIPALS = ("User:ann", "User:bob", None)


class Violation(AssertionError):
    """A rule of ownership is broken."""


def end(client: ClientConnection) -> None:
    """Do the same as the listener when the client disconnects."""
    client.closed = True
    if client.when_closed is not None:
        client.when_closed()


def request(topic: str | None, session_id: int = 0, epoch: int = FULL_EPOCH) -> FetchRequest:
    wanted = [] if topic is None else [FetchTopic(topic, None, [FetchPartition(0, 0, 1)])]
    return FetchRequest(0, 1, 1, 0, wanted, session_id, epoch)


class Run:
    """One seed. `owned`: session id -> (its connection, its topic, the next epoch)."""

    def __init__(self, seed: int, kind: type[FetchSessions] = FetchSessions) -> None:
        self._rng = random.Random(seed)
        self.sessions = kind(ManualClock(), random.Random(seed), FetchMetrics(CollectorRegistry()))
        self.owned: dict[int, tuple[ClientConnection, str, int]] = {}
        self._given: list[int] = []
        self._connections = [self._connect(number) for number in range(4)]

    def _connect(self, number: int) -> ClientConnection:
        return ClientConnection(number, "10.0.0.1:5", self._rng.choice(PRINCIPALS))

    def run(self) -> None:
        """Raises Violation."""
        for step in range(STEPS):
            connection = self._rng.choice(self._connections)
            self._rng.choice([self._open, self._continue, self._continue, self._close, self._end])(connection, step)
            if len(self.sessions._sessions) != len(self.owned) or self.sessions.partitions != len(self.owned):
                raise Violation("a session is kept that no client can use, or is lost")
        for connection in self._connections:
            end(connection)
        if self.sessions._sessions or self.sessions._owned or self.sessions.partitions:
            raise Violation("a session is kept that no client can use, or is lost")

    def _open(self, connection: ClientConnection, step: int) -> None:
        topic = f"topic-{step}"
        exchange = self.sessions.open(request(topic), connection, by_id=False)
        if exchange.session_id in self.owned:
            raise Violation("a session id was given out twice")
        self.owned[exchange.session_id] = connection, topic, 1
        self._given.append(exchange.session_id)

    def _continue(self, connection: ClientConnection, step: int) -> None:
        if not self._given:
            return
        session_id = self._rng.choice(self._given)
        owner, topic, epoch = self.owned.get(session_id, (None, "", 1))
        exchange = self.sessions.open(request(None, session_id, epoch), connection, by_id=False)
        if owner is not connection:
            if exchange.error != ErrorCode.fetch_session_id_not_found or exchange.wanted:
                raise Violation("a session answers another connection")
            return
        if exchange.error or [name for name, _ in exchange.wanted] != [topic]:
            raise Violation("a session does not answer its owner")
        self.owned[session_id] = owner, topic, epoch + 1

    def _close(self, connection: ClientConnection, step: int) -> None:
        if not self._given:
            return
        session_id = self._rng.choice(self._given)
        epoch = self._rng.choice([FULL_EPOCH, LAST_EPOCH])
        self.sessions.open(request(None, session_id, epoch), connection, by_id=False)
        if session_id in self.owned and self.owned[session_id][0] is connection:
            del self.owned[session_id]

    def _end(self, connection: ClientConnection, step: int) -> None:
        if self._rng.random() < 0.8:
            return
        end(connection)
        self._connections[self._connections.index(connection)] = self._connect(step)
        self.owned = {number: held for number, held in self.owned.items() if held[0] is not connection}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_session_answers_its_owner_only(seed: int) -> None:
    Run(seed).run()


class _OfAnyConnection(FetchSessions):
    """Sessions of every connection that knows the id, as before."""

    def _find(self, session_id, connection):  # type: ignore[no-untyped-def]
        return self._sessions.get(session_id)


class _OfThePrincipal(FetchSessions):
    """Another connection of the same principal continues the session."""

    def _find(self, session_id, connection):  # type: ignore[no-untyped-def]
        session = self._sessions.get(session_id)
        return None if session is None or session.principal != connection.principal else session


class _EndsAny(FetchSessions):
    """Ends the session that a full fetch names, also that of another connection."""

    def open(self, request, connection, **more):  # type: ignore[no-untyped-def]
        if request.session_epoch in (FULL_EPOCH, LAST_EPOCH):
            self._close(request.session_id)
        return super().open(request, connection, **more)


class _KeptAfterItsConnection(FetchSessions):
    """Keeps the sessions of connections that ended."""

    def _end_sessions_of(self, connection: ClientConnection) -> None:
        self._owned.pop(connection, None)


BUGS: dict[str, tuple[type[FetchSessions], str]] = {
    "a session answers any connection": (_OfAnyConnection, "answers another connection|is lost"),
    "a session answers its principal's other connections": (_OfThePrincipal, "answers another connection|is lost"),
    "a full fetch ends the session of another": (_EndsAny, "is lost|does not answer its owner"),
    "a session is kept after its connection": (_KeptAfterItsConnection, "no client can use"),
}
"""What is wrong -> (sessions, what a run must show)."""
PLANTED = PlantedBugs("fetch-sessions", most=50)


@PLANTED.cases(BUGS)
def test_a_planted_bug_is_found(bug: str, trial: Trial) -> None:
    kind, told = BUGS[bug]
    for seed in trial.seeds():
        with trial.shown_by(Violation, told=told):
            Run(seed, kind).run()


def test_a_connection_with_another_principal_has_lost_its_sessions() -> None:
    """No listener changes it; if one did, the session would show what the other principal may read."""
    sessions = FetchSessions(ManualClock(), random.Random(1), FetchMetrics(CollectorRegistry()))
    client = ClientConnection(1, "10.0.0.1:5", "User:ann")
    session_id = sessions.open(request("secret"), client, by_id=False).session_id
    client.principal = "User:bob"
    assert (
        sessions.open(request(None, session_id, 1), client, by_id=False).error == ErrorCode.fetch_session_id_not_found
    )


def test_a_connection_that_has_ended_gets_no_session() -> None:
    """A request may start after its client has gone: nothing would end its session."""
    sessions = FetchSessions(ManualClock(), random.Random(1), FetchMetrics(CollectorRegistry()))
    client = ClientConnection(1, "10.0.0.1:5")
    end(client)
    exchange = sessions.open(request("t"), client, by_id=False)
    assert (exchange.session_id, exchange.error, len(exchange.wanted)) == (0, ErrorCode.none, 1)
    assert sessions.partitions == 0


def test_session_ids_use_all_bits() -> None:
    sessions = FetchSessions(ManualClock(), random.Random(1), FetchMetrics(CollectorRegistry()))
    client = ClientConnection(1, "10.0.0.1:5")
    ids = [sessions.open(request("t"), client, by_id=False).session_id for _ in range(200)]
    assert len(set(ids)) == len(ids)
    assert all(0 < number <= SESSION_ID_MAX for number in ids)
    for bit in range(31):
        assert 40 < sum(number >> bit & 1 for number in ids) < 160, f"bit {bit} is as good as fixed"


async def test_a_client_that_reconnects_needs_one_more_round_trip() -> None:
    """As Kafka's, franz-go's and kafka-python's clients do it: the session is not found, then a full fetch."""
    world = World()
    await world.service.start()
    (key,) = world.create_topic("t", 1)
    first = await world.fetch({key: 0}, session_epoch=0)
    end(world.connection)
    world.connection = ClientConnection(2, "test")
    lost = await world.fetch({}, session_epoch=1, session_id=first.session_id)
    again = await world.fetch({key: 0}, session_epoch=0)
    assert (lost.error, lost.partitions) == (ErrorCode.fetch_session_id_not_found, {})
    assert again.session_id > 0
    assert set(again.partitions) == {key}
    await world.service.close()
