"""Random histories of a group: joins, leaves, silence, failed saves and new coordinators, in any order.

The model's clients behave as real ones do after each answer. What must hold at every step: a token is
answered once, a generation has one leader, and a member's assignment was stored before.
In the end, without faults, every client is a member of one stable generation.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.group import ClassicGroup
from headrace.agent.groups.classic.saved import SavedGroup
from headrace.agent.groups.group_values import (
    GroupEffect,
    GroupState,
    JoinAnswer,
    JoinRequest,
    MemberProtocol,
    MemberRef,
    Reply,
    Save,
    SyncAnswer,
    SyncRequest,
)
from tests.seeds import examples

SESSION, REBALANCE = 10.0, 60.0


@dataclass(eq=False)
class Client:
    """A consumer: what it believes, and the one request that it waits for."""

    name: str
    instance_id: str | None
    protocols: tuple[MemberProtocol, ...]
    member_id: str = ""
    generation: int = -1
    wants: str = "join"
    """join, sync, or nothing (it has its assignment)."""
    waiting: int | None = None
    to_assign: tuple[str, ...] | None = None
    """The leader: whom to assign to."""
    assignment: bytes | None = None
    can_skip_assignment: bool = True

    def ref(self) -> MemberRef:
        return MemberRef(self.member_id, self.instance_id, self.generation)


@dataclass
class World:
    """One group, its store, and every answer that was given."""

    now: float = 0.0
    durable: SavedGroup | None = None
    saves: list[Save] = field(default_factory=list)
    save_failed: bool = False
    """The last one that ended."""
    tokens: itertools.count[int] = field(default_factory=itertools.count)
    open_tokens: dict[int, Client | None] = field(default_factory=dict)


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(11)
        self.world = World()
        self.clients: list[Client] = []
        self.names = itertools.count()
        self.group = self.new_coordinator()

    def new_coordinator(self) -> ClassicGroup:
        self.leaders: dict[int, str] = {}
        group = ClassicGroup("g", self.rng, initial_rebalance_delay=3.0)
        if self.world.durable is not None:
            self.world.saves += [e for e in group.restore(self.world.now, self.world.durable) if isinstance(e, Save)]
        return group

    # -- what clients do

    @rule(static=st.booleans(), extra=st.booleans(), modern=st.booleans())
    def start(self, static: bool, extra: bool, modern: bool) -> None:
        name = f"c{next(self.names)}"
        sticky = (MemberProtocol("sticky", b"s" + name.encode()),) if extra else ()
        protocols = (*sticky, MemberProtocol("range", name.encode()))
        if len(self.clients) < 6:
            instance_id = f"i-{name}" if static else None
            self.clients.append(Client(name, instance_id, protocols, can_skip_assignment=modern))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        """One client does what it is about to do."""
        self.step(data.draw(st.sampled_from(self.clients), label="client"))

    @precondition(lambda self: self.clients)
    @rule(seconds=st.sampled_from([0.0, 3.0]), rounds=st.integers(1, 3), but=st.integers(0, 8), stored=st.booleans())
    def most_act(self, seconds: float, rounds: int, but: int, stored: bool) -> None:
        """All clients but one continue for a while, with or without the store."""
        for _ in range(rounds):
            for index, client in enumerate(self.clients):
                if index != but:
                    self.step(client)
            self.time_passes(seconds)
            while stored and self.world.saves:
                self.save_ends(ErrorCode.none)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        """A client's request timed out on its side: it sends the same once more."""
        client = data.draw(st.sampled_from(self.clients), label="client")
        if client.waiting is not None:
            self.world.open_tokens[client.waiting] = None
            client.waiting = None
            self.step(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def change_subscription(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients), label="client")
        if client.waiting is None and client.member_id:
            client.protocols = tuple(MemberProtocol(p.name, p.metadata + b"!") for p in client.protocols)
            client.wants = "join"

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """The process is restarted: a static one comes back under its instance id."""
        client = data.draw(st.sampled_from(self.clients), label="client")
        self.forget(client)
        self.clients.remove(client)
        if client.instance_id is not None:
            modern = client.can_skip_assignment
            self.clients.append(Client(client.name, client.instance_id, client.protocols, can_skip_assignment=modern))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients), label="client")
        if client.member_id:
            _, effects = self.group.leave(self.world.now, [MemberRef(client.member_id, client.instance_id)])
            self.forget(client)
            self.clients.remove(client)
            self.perform(effects)

    @precondition(lambda self: any(client.instance_id for client in self.clients))
    @rule(data=st.data())
    def admin_removes(self, data: st.DataObject) -> None:
        """A static member is removed by its instance id alone; its process finds out and joins again."""
        instances = [client.instance_id for client in self.clients if client.instance_id]
        instance_id = data.draw(st.sampled_from(instances), label="instance")
        known = self.group.roster.static_member(instance_id)
        (departure,), effects = self.group.leave(self.world.now, [MemberRef("", instance_id)])
        assert departure.code is (ErrorCode.unknown_member_id if known is None else ErrorCode.none)
        self.perform(effects)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), behind=st.integers(0, 2))
    def commit(self, data: st.DataObject, behind: int) -> None:
        """Offsets are stored for members of the newest generation that any member learned of, and no other."""
        client = data.draw(st.sampled_from(self.clients), label="client")
        generation = client.generation - behind
        code = self.group.check_commit(self.world.now, client.ref()._replace(generation=generation), 8)
        current = generation == self.group.generation
        if code is ErrorCode.none:
            standalone = generation < 0 and self.group.state is GroupState.EMPTY
            assert standalone or (current and client.member_id in self.group.roster)
            assert standalone or generation >= max(self.leaders, default=0)
        elif code is ErrorCode.rebalance_in_progress:
            assert self.group.state is GroupState.COMPLETING_REBALANCE

    # -- what else happens

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.0, 11.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        self.perform(self.group.tick(self.world.now))

    @precondition(lambda self: self.world.saves)
    @rule(code=st.sampled_from([ErrorCode.none, ErrorCode.none, ErrorCode.coordinator_not_available]))
    def save_ends(self, code: ErrorCode) -> None:
        save = self.world.saves.pop(0)
        self.world.save_failed = code is not ErrorCode.none
        if code is ErrorCode.none:
            assert isinstance(save.state, SavedGroup)
            self.world.durable = save.state
        self.perform(self.group.saved(self.world.now, save.revision, code))

    @rule()
    def coordinator_moves(self) -> None:
        self.world.saves.clear()
        self.perform(self.group.close(ErrorCode.not_coordinator))
        assert not self.world.open_tokens, "an answer was lost"
        self.group = self.new_coordinator()

    # -- the clients' side of the protocol

    def step(self, client: Client) -> None:
        if client.waiting is not None:
            return
        now = self.world.now
        if client.wants == "nothing":
            code = self.group.heartbeat(now, client.ref())
            self.on_error(client, code) if code is not ErrorCode.none else None
            return
        client.waiting = next(self.world.tokens)
        self.world.open_tokens[client.waiting] = client
        if client.wants == "join":
            request = JoinRequest(
                MemberRef(client.member_id, client.instance_id),
                client.name,
                "/host",
                SESSION,
                REBALANCE,
                "consumer",
                client.protocols,
                id_required=client.can_skip_assignment,
                can_skip_assignment=client.can_skip_assignment,
            )
            self.perform(self.group.join(now, request, client.waiting))
        else:
            assignments = {m: f"{m}@{client.generation}".encode() for m in client.to_assign or ()}
            self.perform(self.group.sync(now, SyncRequest(client.ref(), assignments), client.waiting))

    def perform(self, effects: list[GroupEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Save):
                self.world.saves.append(effect)
                continue
            assert isinstance(effect, Reply)
            assert isinstance(effect.token, int)
            assert effect.token in self.world.open_tokens, "answered twice"
            client = self.world.open_tokens.pop(effect.token)
            if isinstance(effect.answer, JoinAnswer):
                self.check_leader(effect.answer)
            if client is None:
                continue
            client.waiting = None
            if isinstance(effect.answer, JoinAnswer):
                self.on_joined(client, effect.answer)
            else:
                assert isinstance(effect.answer, SyncAnswer)
                self.on_synced(client, effect.answer)

    def check_leader(self, answer: JoinAnswer) -> None:
        """Only one member of a generation is ever told to assign."""
        if answer.members and not answer.skip_assignment:
            assert answer.leader_id == answer.member_id
            assert self.leaders.setdefault(answer.generation, answer.member_id) == answer.member_id

    def on_joined(self, client: Client, answer: JoinAnswer) -> None:
        if answer.code is ErrorCode.none or answer.code is ErrorCode.member_id_required:
            client.member_id = answer.member_id
        if answer.code is not ErrorCode.none:
            self.on_error(client, answer.code)
            return
        leads = bool(answer.members) and not answer.skip_assignment
        client.generation = answer.generation
        client.to_assign = tuple(member.member_id for member in answer.members) if leads else None
        client.wants = "sync"

    def on_synced(self, client: Client, answer: SyncAnswer) -> None:
        if answer.code is not ErrorCode.none:
            self.on_error(client, answer.code)
            return
        stored = self.world.durable
        assert stored is not None
        assert stored.generation == client.generation, "told before it was stored"
        assert {m.member_id: m.assignment for m in stored.members}[client.member_id] == answer.assignment
        client.assignment = answer.assignment
        client.wants = "nothing"

    def on_error(self, client: Client, code: ErrorCode) -> None:
        client.wants = "join"
        if code in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
            client.member_id = ""
        retriable = (
            ErrorCode.rebalance_in_progress,
            ErrorCode.illegal_generation,
            ErrorCode.unknown_member_id,
            ErrorCode.member_id_required,
            ErrorCode.not_coordinator,
            ErrorCode.coordinator_not_available,
        )
        assert code in retriable, code

    def forget(self, client: Client) -> None:
        if client.waiting is not None:
            self.world.open_tokens[client.waiting] = None

    # -- what must always hold

    @invariant()
    def the_roster_is_sound(self) -> None:
        group = self.group
        ids = [member.member_id for member in group.roster]
        assert len(ids) == len(set(ids))
        assert (group.roster.leader_id in ids) if ids else group.roster.leader_id is None
        for member in group.roster:
            if member.instance_id is not None:
                assert group.roster.static_member(member.instance_id) is member
        waiting = [t for m in group.roster for t in (m.join_token, m.sync_token) if t is not None]
        waiting += [each.token for each in group._outbox._waiting]
        assert len(waiting) == len(self.world.open_tokens), "an answer was lost"
        assert set(waiting) == set(self.world.open_tokens)

    @invariant()
    def tools_see_what_is_there(self) -> None:
        group, shown = self.group, self.group.describe()
        assert [member.member_id for member in shown.members] == [member.member_id for member in group.roster]
        assert shown.state == group.state_name
        if group.state is not GroupState.STABLE:
            assert not any(member.metadata or member.assignment for member in shown.members)
        if group.state is GroupState.EMPTY:
            assert not shown.members

    @invariant()
    def a_group_that_is_not_empty_is_saved_so(self) -> None:
        """Else its offsets would expire under it. Unless that very save failed: the next one comes soon."""
        saves = [save.state for save in self.world.saves]
        last = saves[-1] if saves else self.world.durable
        if self.group.state is not GroupState.EMPTY and not self.world.save_failed:
            assert isinstance(last, SavedGroup)
            assert last.record().state != "Empty"

    @invariant()
    def a_stable_generation_is_assigned_and_stored(self) -> None:
        if self.group.state is GroupState.STABLE and not self.world.saves:
            assert self.world.durable is not None
            assert self.world.durable.generation == self.group.generation

    def teardown(self) -> None:
        """Left in peace, the clients end up in one stable generation, after any history."""
        for _ in range(400):
            self.world.now += 0.5
            while self.world.saves:
                self.save_ends(ErrorCode.none)
            self.perform(self.group.tick(self.world.now))
            for client in self.clients:
                self.step(client)
        assert not self.world.open_tokens
        assert {m.member_id for m in self.group.roster} == {client.member_id for client in self.clients}
        assert self.group.state is (GroupState.STABLE if self.clients else GroupState.EMPTY)
        for client in self.clients:
            assert client.generation == self.group.generation
            assert client.assignment is not None
            owner, _, generation = client.assignment.decode().partition("@")
            assert int(generation) == client.generation
            # a static member that restarts without a rebalance continues with what its instance was given
            assert owner == client.member_id or (client.instance_id and owner.startswith(f"{client.instance_id}-"))


GroupMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30)
TestGroupMachine = GroupMachine.TestCase
