"""The metadata log before logins: read from after each handshake, and never often."""

from __future__ import annotations

import asyncio
import random

import pytest

from headrace.agent.access.sasl.authentication import INTERVAL_SECONDS, NewestLog
from headrace.agent.cluster.view import PATIENCE_SECONDS
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.api_keys import ApiKey
from tests.agent.access.test_sasl import World
from tests.manual_clock import ManualClock


async def test_clients_log_in_while_the_metastore_hangs_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.authentication._log._catch_up = never
    began_at = world.clock.monotonic()
    assert await world.scram() == 0
    assert world.clock.monotonic() - began_at == PATIENCE_SECONDS
    assert "authentication without the log's head: error=the metastore did not answer" in caplog.text


async def never() -> MetadataImage:
    return await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("connections", [1, 20])
async def test_however_many_handshakes_there_are_the_log_is_read_ten_times_a_second(connections: int) -> None:
    world = World()
    began_at = world.clock.monotonic()

    async def client() -> None:
        world.connect()
        for _ in range(100 // connections):
            await world.authentication.handshake(world.request(ApiKey.SASL_HANDSHAKE, b"\0\x05PLAIN"))

    await world.clock.run(asyncio.gather(*(client() for _ in range(connections))))
    assert world.reads <= 1 + (world.clock.monotonic() - began_at) / INTERVAL_SECONDS + 1e-6
    assert world.reads <= 100 // connections


@pytest.mark.parametrize("seed", range(10))
async def test_a_login_knows_what_was_stored_before_it_next_to_other_logins(seed: int) -> None:
    """Each client stores its user elsewhere and logs in; the reads take a while, and some callers give up."""
    clock, rng = ManualClock(), random.Random(seed)
    stored: set[int] = set()
    known: set[int] = set()

    async def catch_up() -> MetadataImage:
        await clock.sleep(rng.choice((0.0, 0.01)))
        seen = set(stored)
        await clock.sleep(rng.choice((0.0, 0.01, 0.3)))
        known.update(seen)
        return MetadataImage()

    log = NewestLog(catch_up, clock)

    async def client(number: int) -> None:
        await clock.sleep(rng.uniform(0, 2))
        stored.add(number)
        await log.see()
        assert number in known

    logins = [asyncio.ensure_future(client(number)) for number in range(50)]
    await clock.advance(1.0)
    for impatient in rng.sample(logins, 10):
        impatient.cancel()
    await clock.advance(5.0)
    assert all(login.done() for login in logins)
    assert sum(login.cancelled() for login in logins) <= 10
    await asyncio.gather(*(login for login in logins if not login.cancelled()))
