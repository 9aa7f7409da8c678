"""Random histories of a consumer group: members of both protocols, silence, lost answers, failed saves, new
coordinators and topics that come, grow and go, in any order.

What must hold at every step: no partition is consumed by two members, the consumer of a partition is known
to hold it, and no answer contains unstored state. In the end, without faults, every partition of a
subscribed topic is consumed by one member, and all members have arrived at the target.
"""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.members import ConsumerHeartbeat
from headrace.agent.groups.consumer.saved import decode
from headrace.agent.groups.group_values import MemberRef
from headrace.agent.groups.members.member import LEAVE_EPOCH, LEAVE_FOR_A_WHILE_EPOCH, from_topics
from headrace.metastore.log.image import MetadataImage
from tests.agent.groups.consumer.consumer_world import REBALANCE, SESSION, ClassicClient, Client, World
from tests.seeds import examples

NAMES = ("a", "b", "c")


class ConsumerGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(group_consumer_migration_policy="disabled")
        self.world.topics.put("a", 3)
        self.clients: list[Client | ClassicClient] = []
        self.ids = itertools.count()
        self.epochs = (0, 0)

    # -- what clients do

    @rule(
        names=st.frozensets(st.sampled_from(NAMES), max_size=3),
        pattern=st.sampled_from(["", "", "a.*", ".*"]),
        static=st.booleans(),
    )
    def start(self, names: frozenset[str], pattern: str, static: bool) -> None:
        if len(self.clients) < 5:
            member_id = f"m{next(self.ids)}"
            instance_id = f"i-{member_id}" if static else None
            self.clients.append(Client(self.world, member_id, names, pattern, instance_id))

    @rule(names=st.frozensets(st.sampled_from(NAMES), min_size=1), cooperative=st.booleans())
    def start_classic(self, names: frozenset[str], cooperative: bool) -> None:
        if len(self.clients) < 5:
            self.clients.append(ClassicClient(self.world, f"k{next(self.ids)}", names, cooperative))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.clients), label="client").step()

    @precondition(lambda self: self.clients)
    @rule(rounds=st.integers(1, 5), but=st.integers(0, 8), stored=st.booleans())
    def most_act(self, rounds: int, but: int, stored: bool) -> None:
        """All clients but one continue for a while, with or without the store."""
        for _ in range(rounds):
            for index, client in enumerate(self.clients):
                if index != but:
                    client.step()
            if stored:
                self.world.store_all()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def answer_is_lost(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.clients), label="client").lose_answer()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), names=st.frozensets(st.sampled_from(NAMES), min_size=1))
    def change_subscription(self, data: st.DataObject, names: frozenset[str]) -> None:
        client = data.draw(st.sampled_from(self.clients), label="client")
        client.names = names
        if isinstance(client, Client):
            client.say_all = True
        elif client.waiting is None:
            client.wants_to = "join"

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """The process is killed: nothing is consumed from there any more, without a message."""
        self.clients.remove(data.draw(st.sampled_from(self.clients), label="client"))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), comes_back=st.booleans())
    def leave(self, data: st.DataObject, comes_back: bool) -> None:
        client = data.draw(st.sampled_from(self.clients), label="client")
        self.clients.remove(client)
        if isinstance(client, ClassicClient):
            _, effects = self.world.group.classic_protocol.leave(self.world.now, [MemberRef(client.member_id)])
            self.world.perform(effects)
            return
        away = comes_back and client.instance_id is not None
        epoch = LEAVE_FOR_A_WHILE_EPOCH if away else LEAVE_EPOCH
        self.world.heartbeat(ConsumerHeartbeat(client.member_id, epoch, client.instance_id))
        if away:
            member_id = f"m{next(self.ids)}"
            self.clients.append(Client(self.world, member_id, client.names, client.pattern, client.instance_id))

    # -- what else happens

    @rule(seconds=st.sampled_from([0.5, 5.0, SESSION - 1, SESSION + 1, REBALANCE + 1]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @precondition(lambda self: self.world.saves)
    @rule()
    def save_succeeds(self) -> None:
        self.world.store()

    @precondition(lambda self: self.world.saves)
    @rule(happened=st.booleans())
    def save_fails(self, happened: bool) -> None:
        self.world.store(ErrorCode.coordinator_not_available, happened=happened)
        self.epochs = (0, 0)

    @rule(landed=st.booleans())
    def coordinator_moves(self, landed: bool) -> None:
        """A save that was on its way may have landed."""
        if self.world.saves and landed:
            self.world.durable = self.world.saves[0].state.record()
        self.world.move()
        self.epochs = (0, 0)

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(1, 4))
    def topic_appears_or_grows(self, name: str, partitions: int) -> None:
        known = self.world.topics.by_name.get(name)
        self.world.topics.put(name, max(partitions, len(known.leader_epochs) if known else 0))
        self.world.perform(self.world.group.metadata_changed(self.world.now, MetadataImage()))

    @rule(name=st.sampled_from(NAMES))
    def topic_goes(self, name: str) -> None:
        self.world.topics.delete(name)
        self.world.perform(self.world.group.metadata_changed(self.world.now, MetadataImage()))

    # -- what must always hold

    @invariant()
    def nothing_is_consumed_twice(self) -> None:
        """By members that the group still counts; one that was given up may not have learned of it."""
        consumed: dict[int, str] = {}
        for client in self.clients:
            member = self.world.group.roster.get(client.member_id)
            if isinstance(client, ClassicClient):
                client.given_up = client.given_up or (member is None and bool(client.owned))
                if client.given_up:
                    continue  # it may have joined again since, as a new member without partitions
            if member is None:
                continue
            for partition in client.owned:
                assert partition not in consumed, (consumed[partition], client.member_id)
                consumed[partition] = client.member_id
            there = frozenset(key for name in self.world.topics.by_name for key in self.world.topics.keys_of([name]))
            assert client.owned & there <= member.holds, "the coordinator does not know what it consumes"

    @invariant()
    def nobody_heard_what_is_not_stored(self) -> None:
        stored = {} if self.world.durable is None else {m.member_id: m for m in decode(self.world.durable.data).members}
        for client in self.clients:
            if isinstance(client, Client) and client.told is not None and client.member_id in stored:
                member = stored[client.member_id]
                if member.epoch == client.epoch:
                    assert client.told <= from_topics(member.assigned) | from_topics(member.to_revoke) | client.owned

    @invariant()
    def epochs_never_go_back(self) -> None:
        target = self.world.group.target
        assert target.epoch <= target.group_epoch
        assert self.epochs <= (target.group_epoch, target.epoch)
        self.epochs = (target.group_epoch, target.epoch)
        for member in self.world.group.roster:
            assert member.epoch <= target.epoch
            assert not member.assigned & member.to_revoke

    def teardown(self) -> None:
        """Left in peace, the clients arrive."""
        for _ in range(200):
            self.world.store_all()
            for client in self.clients:
                client.step()
                client.step()
            self.world.pass_time(1.0)
            self.nothing_is_consumed_twice()
        group = self.world.group
        assert {member.member_id for member in group.roster} == {client.member_id for client in self.clients}
        assert group.state_name == ("Stable" if self.clients else "Empty")
        consumed = sorted(partition for client in self.clients for partition in client.owned)
        wanted = frozenset().union(*(client.wants() for client in self.clients))
        assert consumed == sorted(wanted)
        for client in self.clients:
            assert client.owned <= client.wants()


ConsumerGroupMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=40)
TestConsumerGroupMachine = ConsumerGroupMachine.TestCase
