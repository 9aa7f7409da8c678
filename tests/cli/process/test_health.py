"""/healthz and /readyz over HTTP: 200, or 503 with the reason, for each thing that a process waits for or lacks."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from headrace.cli.process import heap
from headrace.cli.process.http_app import LOOP_SILENCE_SECONDS
from headrace.cli.process.shell import (
    BUCKET_PROBE_SECONDS,
    METASTORE_PROBE_SECONDS,
    Dependencies,
    ProcessShell,
    ProcessWatches,
)
from headrace.config.memory_budget import ALLOCATOR_BYTES, MIB
from headrace.config.settings import Settings
from headrace.metastore.setting_reporter import NO_COMPACTOR, REPORT_SECONDS, REPORTS_PER_LOOK, SettingReporter
from headrace.metastore.upkeep_watch import UpkeepWatch
from headrace.storage.dependency import NotReady, Reported
from headrace.storage.errors import InvalidError, UnavailableError
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange, ObjectInfo
from load.contexts import a_context
from tests.manual_clock import ManualClock
from tests.nouns import nouns
from tests.scripted_settings import ScriptedSettings

LOOKS_MAX = 1_000


class ScriptedRole:
    """Fault model: `reason` says why it takes no work, as a drain or a lost lease does."""

    title = "role"
    needs_bucket = True

    def __init__(self) -> None:
        self.reason: str | None = None
        self.waits_for = ""

    async def start(self) -> None: ...

    async def drain(self, grace_seconds: float) -> None:
        self.reason = "not a running member of the cluster"

    async def close(self, grace_seconds: float) -> None: ...

    def not_ready(self) -> NotReady | None:
        return None if self.reason is None else NotReady(self.reason, self.waits_for)

    def ready_fields(self) -> str:
        return "role=1"

    async def status(self) -> dict[str, Any]:
        return {"role": "scripted"}


class ScriptedMetastore:
    """Fault model: `error` for every call, or no answer while it `hangs`."""

    cluster_id = "scripted"

    def __init__(self) -> None:
        self.error: UnavailableError | None = None
        self.hangs = False
        self.refuses: str | None = None
        self.probes = self.answered = 0

    def commits_made(self) -> int:
        return self.answered

    def refusal(self) -> str | None:
        return self.refuses

    async def known_bucket(self) -> None:
        """The bucket is not known yet."""

    async def sample_files(self, oldest: int, newest: int) -> list[uuid.UUID]:
        return []

    async def probe_commit(self) -> None:
        self.probes += 1
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.error:
            raise self.error
        self.answered += 1

    async def close(self) -> None: ...


class ScriptedStore(MemoryStore):
    """Fault model: `error` for every GET; `denied`: each PUT is refused, as by rights that are gone; `hangs`: it has no
    answer. HEADs are answered.
    """

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.error: UnavailableError | None = None
        self.denied = self.hangs = False
        self.puts = 0

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        self.puts += 1
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.denied:
            raise InvalidError(f"access denied: key={key}")
        return await super().put(key, body, if_absent=if_absent)

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        if self.error:
            raise self.error
        return await super().get(key, byte_range)


class ScriptedLife:
    """Fault model: the life of the metastore is over for `reason`."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def not_ready_reason(self) -> str | None:
        return self.reason

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class ScriptedPeers:
    """What the other agents report."""

    def __init__(self) -> None:
        self.reports: frozenset[str] = frozenset()
        self.answer = True

    async def reported(self) -> Reported:
        return Reported(self.reports, self.answer)


class HealthWorld:
    """A process with one role, and its HTTP endpoints."""

    def __init__(self, role: ScriptedRole | None = None) -> None:
        self.role, self.metastore, self.store = role or ScriptedRole(), ScriptedMetastore(), ScriptedStore()
        self.settings, self.clock, registry = ScriptedSettings(), ManualClock(), CollectorRegistry()
        self.heartbeat_failure: str | None = None
        self.life, self.peers, self.registry = ScriptedLife(), ScriptedPeers(), registry
        context = a_context(
            nouns(self.metastore), self.clock, store=self.store, settings=Settings(http_port=0), registry=registry
        )
        self.dependencies = Dependencies(context, own_failure=lambda: self.heartbeat_failure)
        self.shell = ProcessShell(
            context,
            self.role,
            [[self.role]],
            ProcessWatches(
                self.dependencies,
                cast(Any, self.life),
                SettingReporter(
                    a_context(nouns(self.settings), self.clock, settings=Settings(num_partitions=3), registry=registry),
                    ["broker"],
                ),
                UpkeepWatch(context.metastore, self.store, 0, lambda: False, self.clock, registry),
            ),
            self.peers,
        )
        self.address = self.shell.ready_line().rpartition("http=")[2]

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """(status, JSON body)."""
        return await asyncio.to_thread(self._get, path)

    async def probed(self) -> tuple[int, dict[str, Any]]:
        """/readyz after every probe and round had its turn."""
        await self.clock.advance(2 * BUCKET_PROBE_SECONDS)
        return await self.get("/readyz")

    def _get(self, path: str) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=300) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@pytest.fixture
async def world() -> AsyncIterator[HealthWorld]:
    world = HealthWorld()
    await world.shell.start()
    yield world
    await world.shell.stop()


async def test_each_process_counts_idle_memory_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    unused, part = [100 * MIB], {"part": "allocator"}
    monkeypatch.setattr(heap, "unused_heap_bytes", lambda: unused[-1])
    monkeypatch.setattr(heap, "give_heap_back", lambda: unused.append(MIB))
    world = HealthWorld()
    await world.shell.start()
    try:
        assert world.registry.get_sample_value("headrace_memory_limit_bytes", part) == ALLOCATOR_BYTES
        seen: list[float | None] = []
        while MIB not in seen and len(seen) < LOOKS_MAX:  # a look is on a thread, which the clock does not wait for
            await world.clock.advance(heap.LOOK_SECONDS)
            seen.append(world.registry.get_sample_value("headrace_memory_bytes", part))
        assert 100 * MIB in seen
        assert MIB in seen
    finally:
        await world.shell.stop()


async def test_a_process_that_takes_work_is_alive_and_ready(world: HealthWorld) -> None:
    assert await world.get("/healthz") == (200, {"status": "alive"})
    code, body = await world.get("/readyz")
    assert (code, body["status"]) == (200, "ready")
    assert await world.get("/v1/status") == (200, {"role": "scripted"})


@pytest.mark.requirement("X10")
async def test_a_ready_process_names_what_an_operator_should_change(world: HealthWorld) -> None:
    world.settings.values["num.partitions"] = "5"
    await world.clock.advance(REPORTS_PER_LOOK * REPORT_SECONDS)
    code, body = await world.get("/readyz")
    assert (code, body["status"]) == (200, "ready")
    ignored, no_compactor = body["warnings"]
    assert "setting=num.partitions file=3 cluster=5" in ignored
    assert no_compactor == NO_COMPACTOR
    await world.role.drain(1)
    code, body = await world.get("/readyz")
    assert (code, len(body["warnings"])) == (503, 2)


async def test_a_draining_process_is_alive_and_not_ready(world: HealthWorld) -> None:
    await world.role.drain(1)
    assert (await world.get("/healthz"))[0] == 200
    code, body = await world.get("/readyz")
    assert (code, body["reason"]) == (503, "role: not a running member of the cluster")


async def test_a_life_of_the_metastore_that_is_over_is_named(world: HealthWorld) -> None:
    world.life.reason = "another server is the metastore by now"
    code, body = await world.get("/readyz")
    assert (code, body["reason"]) == (503, "metastore life: another server is the metastore by now")


@pytest.mark.parametrize("part", ["metastore", "bucket"])
async def test_what_other_agents_reach_makes_this_one_not_ready(world: HealthWorld, part: str) -> None:
    broken: Any = world.metastore if part == "metastore" else world.store
    broken.error = UnavailableError("away")
    world.peers.reports = frozenset({part})
    code, body = await world.probed()
    assert (code, body["reason"]) == (503, f"{part}: away")
    assert (await world.get("/healthz"))[0] == 200
    assert world.registry.get_sample_value("headrace_dependency_failing", {"dependency": part}) == 1
    broken.error = None
    assert (await world.probed())[0] == 200
    assert world.registry.get_sample_value("headrace_dependency_failing", {"dependency": part}) == 0


@pytest.mark.parametrize("part", ["metastore", "bucket"])
async def test_an_outage_that_all_agents_share_is_a_detail(world: HealthWorld, part: str) -> None:
    broken: Any = world.metastore if part == "metastore" else world.store
    broken.error = UnavailableError("away")
    world.peers.reports = frozenset({"metastore", "bucket"} - {part})
    code, body = await world.probed()
    assert (code, body["details"]) == (
        200,
        [f"{part}: fails here, and no other agent reports that it reaches it: away"],
    )


async def test_calls_that_are_answered_count_as_probes(world: HealthWorld) -> None:
    await world.probed()
    before = world.metastore.probes
    assert before > 2, "its own probes are no reason to leave one out"
    for _ in range(5):
        world.metastore.answered += 1  # another call of this process
        await world.clock.advance(METASTORE_PROBE_SECONDS)
    assert world.metastore.probes <= before + 1
    world.metastore.error, world.peers.reports = UnavailableError("away"), frozenset({"metastore", "bucket"})
    assert (await world.probed())[1]["reason"] == "metastore: away"
    world.metastore.answered += 1
    await world.clock.advance(METASTORE_PROBE_SECONDS)
    assert (await world.get("/readyz"))[0] == 200, "another call was answered"


async def test_a_dependency_that_hangs_counts_as_failing(world: HealthWorld) -> None:
    world.metastore.hangs = True
    world.peers.reports = frozenset({"metastore", "bucket"})
    code, body = await world.probed()
    assert (code, body["reason"]) == (503, "metastore: no answer")


async def test_a_blocked_event_loop_is_noticed_without_it(world: HealthWorld) -> None:
    world.clock.jump(LOOP_SILENCE_SECONDS)  # nothing of the process ran meanwhile
    code, body = await world.get("/readyz")
    assert (code, body["reason"]) == (503, "event loop: blocked for 5 s")
    assert (await world.probed())[0] == 200


async def test_verbose_lists_every_part(world: HealthWorld) -> None:
    code, body = await world.get("/readyz?verbose")
    assert code == 200
    assert [part["name"] for part in body["parts"]] == [
        *("event loop", "metastore life", "role", "background work", "metastore", "bucket")
    ]
    assert all(part["ok"] for part in body["parts"])


async def test_a_process_reports_what_it_reaches(world: HealthWorld) -> None:
    await world.probed()
    assert world.dependencies.reached() == {"metastore", "bucket"}
    world.store.error = UnavailableError("away")
    world.metastore.hangs = True
    await world.probed()
    assert world.dependencies.reached() == frozenset()


async def test_a_process_that_needs_no_bucket_does_not_ask_for_it() -> None:
    role = ScriptedRole()
    role.needs_bucket = False
    world = HealthWorld(role)
    await world.shell.start()
    world.store.error = UnavailableError("away")
    world.peers.reports = frozenset({"bucket"})
    assert (await world.probed())[0] == 200
    await world.shell.stop()
