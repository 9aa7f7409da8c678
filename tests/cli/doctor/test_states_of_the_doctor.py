"""The doctor itself: it ends also if something does not answer, and what it could not see is not known.

Fault model: a file system in which a read never ends; a Postgres in which commits wait for a standby that is gone;
connections that are open and transfer nothing.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import aioboto3
import pytest

from headrace.cli.doctor import bucket, command
from headrace.cli.doctor.deadline import in_time
from headrace.cli.doctor.findings import Area, Finding
from headrace.config.settings import Settings
from headrace.metastore.postgres import pool
from headrace.metastore.postgres.diagnosis import diagnosis as hosts
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import OBJECT_KEY
from tests.cli.doctor.world import Doctor, lines
from tests.fixtures_s3 import BUCKET
from tests.manual_clock import ManualClock
from tests.metastore.lost_standby import STANDBY, LostStandby
from tests.scripted_http import ScriptedServer, refusing
from tests.torture.proxy import FaultProxy


def test_a_file_system_that_hangs(places: list[str], doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of a pipe without a writer ends no earlier than that of a network file system that is away."""
    monkeypatch.setattr(bucket, "STEP_SECONDS", 0.3)
    properties = Path(places[3].removeprefix("file://")) / OBJECT_KEY
    content = properties.read_bytes()
    properties.unlink()
    os.mkfifo(properties)
    found = doctor(*places)
    with properties.open("wb") as writing:  # the threads that still read it end
        writing.write(content)
    level, told, to_do = found["bucket cluster"]
    assert (level, told) == ("unknown", "not known: no answer in 0.3 s")
    assert "run the doctor again" in str(to_do)
    assert found["bucket put"][0] == found["postgres schema"][0] == "ok"
    assert "cluster agents" in found, "Postgres is judged without the bucket"


def test_commits_that_hang(places: list[str], doctor: Doctor) -> None:
    with LostStandby(places[1]):
        found = doctor(*places)
    level, told, to_do = found["postgres commits"]
    assert (level, f"synchronous_standby_names='{STANDBY}'" in told) == ("bad", True)
    assert "start the standby" in str(to_do)
    assert found["bucket put"][0] == "ok"
    assert "cluster agents" not in found, "nothing that would wait, too, is asked"


async def test_a_server_that_is_silent_after_the_connection(
    postgres_server: EmbeddedPostgres, metastore_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first answer comes; then nothing passes, in connections that stay open."""
    for module, name, seconds in (
        (command, "AREA_SECONDS", 0.5),
        (pool, "CONNECT_TIMEOUT_S", 2),
        (hosts, "HOST_SECONDS", 0.5),
        (pool, "SINGLE_CONNECT_TIMEOUT_S", 2),
    ):
        monkeypatch.setattr(module, name, seconds)
    proxy = FaultProxy(random.Random(0))
    await proxy.start()
    proxy.target = postgres_server.port
    proxy.fault = "half_open"
    name = metastore_url.partition("@/")[2].partition("?")[0]
    settings = Settings(metastore_url=postgres_server.tcp_url(name, proxy.port), bucket=tmp_path.as_uri())
    found = await command.examine(settings, SystemClock(), random.Random(1))
    await proxy.close()
    (postgres,) = [each for each in found if each.area == "postgres"]
    assert (postgres.check, postgres.level.value) == ("answers", "unknown")
    assert any(each.check == "put" and each.level.value == "ok" for each in found)


async def test_a_check_ends_at_its_deadline_and_is_not_known() -> None:
    clock, area = ManualClock(), Area("here")

    async def never() -> list[Finding]:
        return [await clock.sleep(1e9) or area.ok("check", "done")]

    found = await clock.run(in_time(clock, 5.0, area, "check", never(), "ask again"))
    assert found == [area.unknown("check", "no answer in 5 s", "ask again")]


async def test_the_client_of_s3_is_loaded_on_another_thread(
    aws_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a second of CPU; on the doctor's event loop Postgres' answers would wait for it."""
    threads: list[int] = []

    class Session(aioboto3.session.Session):
        def client(self, *given: Any, **named: Any) -> Any:
            threads.append(threading.get_ident())
            return super().client(*given, **named)

    monkeypatch.setattr(aioboto3, "Session", Session)
    async with ScriptedServer([refusing(403, "AccessDenied")] * 9) as server:
        settings = Settings(
            bucket=f"s3://{BUCKET}/logs", s3_endpoint=server.url, s3_region="us-east-1", s3_path_style=True
        )
        found = lines(await bucket.examine(settings, SystemClock(), random.Random(5)))
    assert "AccessDenied" in found["put"][1]
    assert threads
    assert threading.get_ident() not in threads
