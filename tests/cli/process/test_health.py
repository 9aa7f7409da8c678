"""/healthz and /readyz over HTTP: 200, or 503 with the reason, for each thing that a process waits for or lacks."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from headrace.cli.process.shell import ProcessShell
from headrace.config.settings import Settings
from headrace.metastore.setting_reporter import NO_COMPACTOR, REPORT_SECONDS, SettingReporter
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ObjectInfo
from tests.manual_clock import ManualClock
from tests.scripted_settings import ScriptedSettings


class ScriptedRole:
    """Fault model: `reason` says why it takes no work, as a drain or a lost lease does."""

    title = "role"
    needs_bucket = True

    def __init__(self) -> None:
        self.reason: str | None = None

    async def start(self) -> None: ...

    async def drain(self, grace_seconds: float) -> None:
        self.reason = "not a running member of the cluster"

    async def close(self, grace_seconds: float) -> None: ...

    def not_ready_reason(self) -> str | None:
        return self.reason

    def ready_fields(self) -> str:
        return "role=1"

    async def status(self) -> dict[str, Any]:
        return {"role": "scripted"}


class ScriptedMetastore:
    """Fault model: `error` for every call."""

    cluster_id = "scripted"

    def __init__(self) -> None:
        self.error: UnavailableError | None = None

    async def metadata_head(self) -> int:
        if self.error:
            raise self.error
        return 1

    async def close(self) -> None: ...


class ScriptedStore(MemoryStore):
    """Fault model: `error` for every look at an object."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.error: UnavailableError | None = None

    async def head(self, key: str) -> ObjectInfo:
        if self.error:
            raise self.error
        return await super().head(key)


class ScriptedLife:
    """Fault model: the life of the metastore is over for `reason`."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def not_ready_reason(self) -> str | None:
        return self.reason

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class HealthWorld:
    """A process with one role, and its HTTP endpoints."""

    def __init__(self) -> None:
        self.role, self.metastore, self.store = ScriptedRole(), ScriptedMetastore(), ScriptedStore()
        self.settings, self.clock, registry = ScriptedSettings(), ManualClock(), CollectorRegistry()
        self.life = ScriptedLife()
        self.shell = ProcessShell(
            Settings(http_port=0),
            self.store,
            cast(Any, self.metastore),
            registry,
            cast(Any, self.life),
            self.role,
            [[self.role]],
            SettingReporter(
                self.settings, Settings(num_partitions=3), ["broker"], self.clock, random.Random(1), registry
            ),
        )
        self.address = self.shell.ready_line().rpartition("http=")[2]

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """(status, JSON body)."""
        return await asyncio.to_thread(self._get, path)

    def _get(self, path: str) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@pytest.fixture
async def world() -> AsyncIterator[HealthWorld]:
    world = HealthWorld()
    await world.shell.start()
    yield world
    await world.shell.stop()


async def test_a_process_that_takes_work_is_alive_and_ready(world: HealthWorld) -> None:
    assert await world.get("/healthz") == (200, {"status": "alive"})
    code, body = await world.get("/readyz")
    assert (code, body["status"]) == (200, "ready")
    assert await world.get("/v1/status") == (200, {"role": "scripted"})


@pytest.mark.requirement("X10")
async def test_a_ready_process_names_what_an_operator_should_change(world: HealthWorld) -> None:
    world.settings.values["num.partitions"] = "5"
    await world.clock.advance(REPORT_SECONDS)
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
    assert (code, body["reason"]) == (503, "not a running member of the cluster")


@pytest.mark.parametrize("part", ["metastore", "bucket"])
async def test_an_outage_is_named_and_passes(world: HealthWorld, part: str) -> None:
    broken: Any = world.metastore if part == "metastore" else world.store
    broken.error = UnavailableError("away")
    code, body = await world.get("/readyz")
    assert (code, body["reason"]) == (503, f"{part}: away")
    assert (await world.get("/healthz"))[0] == 200
    broken.error = None
    assert (await world.get("/readyz"))[0] == 200


async def test_a_process_that_needs_no_bucket_does_not_ask_for_it(world: HealthWorld) -> None:
    world.role.needs_bucket = False
    world.store.error = UnavailableError("away")
    assert (await world.get("/readyz"))[0] == 200
