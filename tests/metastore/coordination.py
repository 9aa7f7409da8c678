"""Seeded interleavings of registration, consumer groups and jobs on real Postgres sessions; some order explains each.

Fault model: two to four operations at once, of those that race in production: agents that register (with and without
a node id, twice under one incarnation) or are unregistered, agents that claim, save, release or delete one group, also
under a claim that is over, workers that add, claim, renew, finish and fail jobs, also under a lease that is over. They
queue up in a drawn order at gates (`run_behind`), which open one by one in a drawn order.
Invariant checked: some order of the operations makes the plain model below give the same answers, and in the end the
same groups. Numbers that Postgres draws are taken over: they must rise in that order. An error is a finding.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import random
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from headrace.metastore.api.agents import AgentRegistration, RegisteredAgent
from headrace.metastore.api.groups import GroupClaim, GroupKind, GroupRecord
from headrace.metastore.api.jobs import Job, JobToken, NewJob
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import AlreadyExistsError, FencedError
from tests.metastore.interleavings import Unexplained
from tests.metastore.lock_gates import ASIDE, WATCHER, Sessions, settled
from tests.metastore.sessions import beat, rows

GROUPS, KEYS = ("a", "b"), ("x", "y")
KIND, LEASE_MS = "work", 3_600_000
GATES = ("SELECT FROM metadata_head FOR UPDATE", "SELECT FROM consumer_groups ORDER BY group_id FOR UPDATE")
JOB_GATE, JOB_GATE_SHARE = "SELECT FROM jobs ORDER BY job_id FOR NO KEY UPDATE", 0.3
"""While it is closed, no job can be claimed: that skips rows that are locked."""
REFUSED, HELD, NONE = "refused", "held", "none"


@dataclass
class Coordination:
    """The plain model: what one operation after the other leaves, and tells its caller."""

    agents: dict[int, tuple[uuid.UUID, int, bool]] = field(default_factory=dict)
    """Node id -> (incarnation, broker epoch, unfenced)."""
    holders: dict[str, tuple[RegisteredAgent, int]] = field(default_factory=dict)
    """Group -> (holder, coordinator epoch); a released group has the holder (-1, -1)."""
    saved: dict[str, bytes] = field(default_factory=dict)
    jobs: dict[str, tuple[int, JobToken | None, int]] = field(default_factory=dict)
    """Key of an unfinished job -> (its attempts, the holder's token if it is leased, the epoch of its newest lease)."""
    newest_lease: dict[int, int] = field(default_factory=dict)
    """Job id -> epoch, of finished jobs too."""
    newest_epoch: int = -1

    def is_live(self, agent: RegisteredAgent) -> bool:
        known = self.agents.get(agent.node_id)
        return known is not None and known[1:] == (agent.broker_epoch, True)

    def register(self, wanted: AgentRegistration, seen: Any) -> Any:
        """`seen`: the real answer, for the number that it drew."""
        for node_id, (incarnation, epoch, _) in self.agents.items():
            if incarnation == wanted.incarnation_id:
                return RegisteredAgent(node_id, epoch)
        node_id = wanted.node_id or min(set(range(1, len(self.agents) + 2)) - set(self.agents))
        if node_id in self.agents:
            return REFUSED
        if not isinstance(seen, RegisteredAgent) or seen.broker_epoch <= self.newest_epoch:
            return NONE
        self.newest_epoch = seen.broker_epoch
        self.agents[node_id] = (wanted.incarnation_id, seen.broker_epoch, False)
        return RegisteredAgent(node_id, seen.broker_epoch)

    def unregister(self, agent: RegisteredAgent) -> None:
        if self.agents.get(agent.node_id, (None, -1, False))[1] == agent.broker_epoch:
            del self.agents[agent.node_id]

    def claim_group(self, group: str, agent: RegisteredAgent, seen: Any) -> Any:
        if not self.is_live(agent):
            return REFUSED
        holder, epoch = self.holders.get(group, (RegisteredAgent(-1, -1), -1))
        if holder != agent and self.is_live(holder):
            return HELD
        if not isinstance(seen, tuple) or seen[0] is None or seen[0] <= epoch:
            return NONE
        self.holders[group] = (agent, seen[0])
        return (seen[0], self.saved.get(group))

    def save_group(self, group: str, epoch: int, data: bytes) -> Any:
        if self.holders.get(group, (None, -1))[1] != epoch:
            return REFUSED
        self.saved[group] = data
        return None

    def release_group(self, group: str, epoch: int) -> None:
        """A group that was never saved, or is empty, is forgotten; these tests save none that is empty."""
        if self.holders.get(group, (None, -1))[1] == epoch:
            if group in self.saved:
                self.holders[group] = (RegisteredAgent(-1, -1), epoch)
            else:
                del self.holders[group]

    def delete_group(self, group: str, epoch: int) -> Any:
        if self.holders.get(group, (None, -1))[1] != epoch:
            return REFUSED
        del self.holders[group]
        return self.saved.pop(group, None) is not None

    def enqueue(self, key: str) -> bool:
        if key in self.jobs:
            return False
        self.jobs[key] = (0, None, -1)
        return True

    def claim_job(self, seen: Any) -> Any:
        """Keys have their priority; a job with a row that another session holds may be passed over."""
        free = [key for key, (_, token, _) in self.jobs.items() if token is None]
        if seen == NONE:
            return NONE
        key, attempts, token = seen
        if key not in free or token.epoch <= self.jobs[key][2] or attempts != self.jobs[key][0] + 1:
            return NONE if not free else key
        self.jobs[key] = (attempts, token, token.epoch)
        self.newest_lease[token.job_id] = token.epoch
        return seen

    def end_job(self, key: str, token: JobToken, how: str) -> Any:
        if self.newest_lease.get(token.job_id) != token.epoch:
            return REFUSED
        attempts, holder, epoch = self.jobs.get(key, (0, None, -1))
        if holder != token:  # this lease has ended: to end it again changes nothing
            return REFUSED if how == "renew" else None
        if how == "finish":
            del self.jobs[key]
        elif how == "fail":
            self.jobs[key] = (attempts, None, epoch)
        elif how == "release":
            self.jobs[key] = (attempts - 1, None, epoch)
        return None


@dataclass
class Step:
    """One operation: on Postgres, and on the model, which gets the real answer."""

    name: str
    real: Callable[[], Coroutine[Any, Any, Any]]
    modelled: Callable[[Coordination, Any], Any]


@dataclass
class CoordinationHistory:
    """One database's past, and what may happen next."""

    sessions: Sessions
    store: PostgresMetastore
    seed: int
    model: Coordination = field(default_factory=Coordination)
    incarnations: list[uuid.UUID] = field(default_factory=list)
    agents: list[RegisteredAgent] = field(default_factory=list)
    claims: list[tuple[str, int]] = field(default_factory=list)
    leases: list[tuple[str, JobToken]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    async def round(self) -> None:
        """Run some operations at once, and look for an order that explains them."""
        await self._unfence()
        draws = [self._register, self._unregister, *[self._claim_group] * 3, self._save, self._release, self._delete]
        draws += [self._enqueue, *[self._claim_job] * 2, self._end_job, self._end_job]
        steps = [draw() for draw in self.rng.choices(draws, k=self.rng.choice([2, 3, 4]))]
        seen = await run_behind(self.sessions, self.rng, [step.real for step in steps])
        saved = await self._saved()
        for order in itertools.permutations(range(len(steps))):
            model = copy.deepcopy(self.model)
            explains = all(steps[at].modelled(model, seen[at]) == seen[at] for at in order)
            if explains and model.saved == saved:
                self.model = model
                return
        raise Unexplained(f"seed={self.seed} {[step.name for step in steps]} answers={seen}")

    async def _saved(self) -> dict[str, bytes]:
        found = await rows(
            await self.sessions.get(ASIDE), "SELECT group_id, saved FROM consumer_groups WHERE saved <> ''"
        )
        return {group: bytes(saved) for group, saved in found}

    async def _unfence(self) -> None:
        for node_id, (incarnation, epoch, is_live) in self.model.agents.items():
            if not is_live:
                answer = await beat(self.store, RegisteredAgent(node_id, epoch))
                assert not answer.is_fenced
                self.model.agents[node_id] = (incarnation, epoch, True)
        self.model.newest_epoch = await self.store.cluster.metadata_head() - 1

    # -- what may happen

    def _register(self) -> Step:
        known = self.rng.choice(self.incarnations) if self.incarnations and self.rng.random() < 0.3 else None
        incarnation = known or uuid.UUID(int=self.rng.getrandbits(128))
        self.incarnations.append(incarnation)
        wanted = AgentRegistration(self.rng.choice([None, None, 1, 2]), incarnation, "agent", 9092, None)

        async def real() -> Any:
            try:
                agent = await self.store.cluster.register_agent(wanted)
            except AlreadyExistsError:
                return REFUSED
            self.agents.append(agent)
            return agent

        return Step(f"register {wanted.node_id}", real, lambda model, seen: model.register(wanted, seen))

    def _unregister(self) -> Step:
        agent = self._agent()
        return Step(
            f"unregister {agent}",
            lambda: self.store.cluster.unregister_agent(*agent),
            lambda model, _: model.unregister(agent),
        )

    def _claim_group(self) -> Step:
        group, agent = self.rng.choice(GROUPS), self._agent()

        async def real() -> Any:
            try:
                claim: GroupClaim | None = await self.store.groups.claim_group(group, *agent)
            except FencedError:
                return REFUSED
            if claim is None:
                return HELD
            self.claims.append((group, claim.coordinator_epoch))
            return (claim.coordinator_epoch, claim.record.data if claim.record is not None else None)

        return Step(f"claim {group} {agent}", real, lambda model, seen: model.claim_group(group, agent, seen))

    def _save(self) -> Step:
        (group, epoch), data = self._claim(), self.rng.randbytes(4)
        record = GroupRecord(GroupKind.CLASSIC, "Stable", "consumer", None, data)
        return Step(
            f"save {group} {epoch}",
            lambda: _or_refused(self.store.groups.save_group(group, epoch, record)),
            lambda model, _: model.save_group(group, epoch, data),
        )

    def _release(self) -> Step:
        group, epoch = self._claim()
        return Step(
            f"release {group} {epoch}",
            lambda: self.store.groups.release_groups({group: epoch}),
            lambda model, _: model.release_group(group, epoch),
        )

    def _delete(self) -> Step:
        group, epoch = self._claim()
        return Step(
            f"delete {group} {epoch}",
            lambda: _or_refused(self.store.groups.delete_group(group, epoch)),
            lambda model, _: model.delete_group(group, epoch),
        )

    def _enqueue(self) -> Step:
        key = self.rng.choice(KEYS)

        async def real() -> bool:
            (added,) = await self.store.jobs.enqueue_jobs([NewJob(KIND, key, max_attempts=1_000)])
            return added

        return Step(f"enqueue {key}", real, lambda model, _: model.enqueue(key))

    def _claim_job(self) -> Step:
        async def real() -> Any:
            job: Job | None = await self.store.jobs.claim_job("worker", [KIND], LEASE_MS)
            if job is None:
                return NONE
            self.leases.append((job.key, job.token))
            return (job.key, job.attempts, job.token)

        return Step("claim job", real, lambda model, seen: model.claim_job(seen))

    def _end_job(self) -> Step:
        how = self.rng.choice(["finish", "fail", "release", "renew"])
        held = [(key, token) for key, (_, token, _) in self.model.jobs.items() if token is not None]
        key, token = self.rng.choice(held) if held else ("x", JobToken(1, -5))
        calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "finish": lambda: self.store.jobs.finish_job(token),
            "fail": lambda: self._failed(token),
            "release": lambda: self.store.jobs.release_job(token),
            "renew": lambda: self.store.jobs.heartbeat_job(token, LEASE_MS, ""),
        }
        return Step(
            f"{how} {key} {token}", lambda: _or_refused(calls[how]()), lambda model, _: model.end_job(key, token, how)
        )

    async def _failed(self, token: JobToken) -> None:
        await self.store.jobs.fail_job(token, "no", 0)

    # -- inside

    def _agent(self) -> RegisteredAgent:
        live = [RegisteredAgent(node_id, epoch) for node_id, (_, epoch, _) in self.model.agents.items()]
        if live and self.rng.random() < 0.7:
            return self.rng.choice(live)
        return self.rng.choice(self.agents[-4:]) if self.agents else RegisteredAgent(1, 0)

    def _claim(self) -> tuple[str, int]:
        return self.rng.choice(self.claims[-3:]) if self.claims else (GROUPS[0], 7)


async def run_behind(
    sessions: Sessions, rng: random.Random, reals: list[Callable[[], Coroutine[Any, Any, Any]]]
) -> list[Any]:
    """Each operation's answer. They begin in a drawn order while all gates are closed, and continue as these open."""
    watcher = await sessions.get(WATCHER)
    locks = (*GATES, JOB_GATE) if rng.random() < JOB_GATE_SHARE else GATES
    gates = [await sessions.get(number) for number in range(1, 1 + len(locks))]
    for gate, lock in zip(gates, locks, strict=True):
        await gate.execute("BEGIN")
        await gate.execute(lock.encode())
    running: dict[int, asyncio.Task[Any]] = {}
    for at in rng.sample(range(len(reals)), len(reals)):
        running[at] = asyncio.create_task(reals[at]())
        await settled(watcher, list(running.values()))
    for gate in rng.sample(gates, len(gates)):
        await gate.execute("COMMIT")
        await settled(watcher, list(running.values()))
    return [await running[at] for at in range(len(reals))]


async def _or_refused(call: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await call
    except FencedError:
        return REFUSED
