"""/readyz in outages: of one process, of all, of PUTs alone, and at their beginning and end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.cli.process.http_app import CONFIRM_SECONDS, RETURN_SECONDS
from headrace.cli.process.shell import BUCKET_PROBE_SECONDS, METASTORE_PROBE_SECONDS
from headrace.storage.dependency import BUCKET, METASTORE, RETRY_SECONDS
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.measured import FAILING_SECONDS, PROBE_SECONDS
from tests.cli.process.test_health import HealthWorld, world

__all__ = ["world"]


async def _after_the_lease(world: HealthWorld) -> tuple[int, dict[str, Any]]:
    """/readyz when the metastore was away for so long that the lease ran out."""
    world.metastore.error = UnavailableError("away")
    await world.probed()
    world.role.reason, world.role.waits_for = "its lease ran out", METASTORE
    return await world.probed()


async def test_a_lease_that_ran_out_in_an_outage_that_all_share_is_a_detail(world: HealthWorld) -> None:
    code, body = await _after_the_lease(world)
    assert code == 200
    assert body["details"][0] == "role: its lease ran out, in an outage of the metastore that all agents share"


async def test_bucket_and_metastore_away_for_all_is_a_detail(world: HealthWorld) -> None:
    world.store.error = UnavailableError("away")
    code, body = await _after_the_lease(world)
    assert (code, len(body["details"])) == (200, 3)


async def test_a_lease_is_renewed_before_it_counts_again(world: HealthWorld) -> None:
    """When the metastore answers again, its probe may be answered before the next heartbeat."""
    await _after_the_lease(world)
    world.metastore.error = None
    assert (await world.probed())[0] == 200
    world.role.reason = None
    assert "details" not in (await world.probed())[1]
    world.role.reason = "its lease ran out"
    await world.clock.advance(RETURN_SECONDS)
    code, body = await world.get("/readyz")
    assert (code, body["reason"]) == (503, "role: its lease ran out"), "a lease that is lost without an outage"


async def test_a_lease_that_ran_out_counts_if_another_agent_reaches_the_metastore(world: HealthWorld) -> None:
    await _after_the_lease(world)
    world.peers.reports = frozenset({METASTORE})
    assert (await world.probed())[0] == 200, "the metastore has just come back, and this agent connects again"
    await world.clock.advance(RETURN_SECONDS)
    code, body = await world.get("/readyz")
    assert (code, body["reason"]) == (503, "role: its lease ran out")


async def test_another_agent_that_has_not_noticed_the_outage_yet_takes_out_no_agent(world: HealthWorld) -> None:
    world.metastore.error, world.peers.reports = UnavailableError("away"), frozenset({METASTORE})
    await world.clock.advance(METASTORE_PROBE_SECONDS + CONFIRM_SECONDS / 2)
    code, body = await world.get("/readyz")
    assert (code, body["details"]) == (200, ["metastore: fails here, and another agent has just reached it: away"])
    world.peers.reports = frozenset()
    assert (await world.probed())[0] == 200


async def test_a_bucket_that_answers_and_refuses_puts_is_a_failing_one(world: HealthWorld) -> None:
    """No client produces: the probe finds out within a minute, and notices the end within seconds."""
    world.store.denied = True
    await world.clock.advance(PROBE_SECONDS + BUCKET_PROBE_SECONDS)
    code, body = await world.probed()
    assert (code, len(body["details"])) == (200, 1)
    assert "PUTs fail: access denied" in body["details"][0]
    assert world.registry.get_sample_value("headrace_dependency_failing", {"dependency": BUCKET}) == 1
    world.peers.reports = frozenset({BUCKET})
    await world.clock.advance(RETURN_SECONDS)
    assert (await world.probed())[1]["reason"].startswith("bucket: PUTs fail"), "another agent may put"
    world.store.denied = False
    assert (await world.probed())[0] == 200


async def test_a_bucket_that_leaves_puts_unanswered_is_a_failing_one(world: HealthWorld) -> None:
    """GETs are answered. The PUT of a client that hangs makes the probe due."""
    world.store.hangs = True
    put = asyncio.ensure_future(world.dependencies._puts.put("segment", b""))
    await world.clock.advance(FAILING_SECONDS + 2 * BUCKET_PROBE_SECONDS)
    code, body = await world.get("/readyz")
    assert (code, body["details"]) == (
        200,
        ["bucket: fails here, and no other agent reports that it reaches it: no answer"],
    )
    put.cancel()


async def test_an_idle_process_puts_once_a_minute_at_most(world: HealthWorld) -> None:
    await world.clock.advance(10 * PROBE_SECONDS)
    assert 9 <= world.store.puts <= 10


async def test_a_metastore_that_refuses_to_write_is_seen_and_takes_out_no_agent(world: HealthWorld) -> None:
    world.metastore.refuses = "commit_files failed: No space left on device"
    world.peers.reports = frozenset({METASTORE, BUCKET})
    world.role.reason, world.role.waits_for = "its lease ran out", METASTORE
    code, body = await world.probed()
    assert (code, len(body["details"])) == (200, 2)
    assert "No space left" in body["details"][1]
    assert world.registry.get_sample_value("headrace_dependency_failing", {"dependency": METASTORE}) == 1
    world.metastore.refuses = world.role.reason = None
    assert "details" not in (await world.probed())[1]
    assert world.registry.get_sample_value("headrace_dependency_failing", {"dependency": METASTORE}) == 0


async def test_heartbeats_that_fail_for_all_are_a_detail_although_probes_are_answered(world: HealthWorld) -> None:
    """As behind a lock on the agents' table."""
    world.heartbeat_failure = "heartbeat_at failed: sqlstate=55P03"
    code, body = await world.probed()
    assert (code, body["details"]) == (
        200,
        ["metastore: fails here, and no other agent reports that it reaches it: heartbeat_at failed: sqlstate=55P03"],
    )
    assert METASTORE not in world.dependencies.reached(), "the others hear of it"
    world.role.reason, world.role.waits_for = "its lease ran out", METASTORE
    assert (await world.probed())[0] == 200
    world.heartbeat_failure = world.role.reason = None
    assert "details" not in (await world.probed())[1]


async def test_heartbeats_that_fail_here_alone_take_the_agent_out(world: HealthWorld) -> None:
    world.heartbeat_failure, world.peers.reports = "a heartbeat has no answer", frozenset({METASTORE})
    code, body = await world.probed()
    assert (code, body["reason"]) == (503, "metastore: a heartbeat has no answer")


async def test_commits_that_wait_for_a_standby_take_out_no_agent_although_others_report_success(
    world: HealthWorld,
) -> None:
    """They wait for all: an agent of the release before reports that it reaches Postgres, as reads are answered."""
    world.metastore.refuses = "commits wait for a synchronous standby"
    world.heartbeat_failure, world.peers.reports = "a heartbeat has no answer", frozenset({METASTORE, BUCKET})
    world.role.reason, world.role.waits_for = "its lease ran out", METASTORE
    code, body = await world.probed()
    assert (code, len(body["details"])) == (200, 2)
    assert body["details"][1] == "metastore: does not write, for all processes: commits wait for a synchronous standby"


async def test_what_fails_is_logged_once_a_minute(world: HealthWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.metastore.refuses = "commits wait for a synchronous standby"
    await world.clock.advance(50.0)
    lines = [record.getMessage() for record in caplog.records if "fails here" in record.getMessage()]
    assert lines == ["metastore fails here: commits wait for a synchronous standby"]


async def test_an_agent_that_is_asked_looks_again(world: HealthWorld) -> None:
    """What it answers a second later is new: an outage is not passed on as reached for the whole pause of a probe."""
    await world.probed()
    world.store.error = UnavailableError("away")
    assert BUCKET in world.dependencies.reached()
    await world.clock.advance(RETRY_SECONDS)
    world.dependencies.reached()
    await world.clock.advance(0.1)
    assert BUCKET not in world.dependencies.reached()


async def test_a_lease_that_ran_out_counts_if_no_other_agent_answers(world: HealthWorld) -> None:
    """This agent may be the one that is cut off, from the metastore and from the other agents."""
    world.peers.answer = False
    code, body = await _after_the_lease(world)
    assert (code, body["reason"]) == (503, "role: its lease ran out")


async def test_a_process_that_was_fenced_is_not_excused(world: HealthWorld) -> None:
    await _after_the_lease(world)
    world.role.reason, world.role.waits_for = "fenced", ""
    assert (await world.probed())[1]["reason"] == "role: fenced"


async def test_an_outage_of_the_bucket_excuses_no_lease(world: HealthWorld) -> None:
    world.store.error = UnavailableError("away")
    world.role.reason, world.role.waits_for = "its lease ran out", METASTORE
    assert (await world.probed())[1]["reason"] == "role: its lease ran out"
    assert world.registry.get_sample_value("headrace_dependency_failing", {"dependency": BUCKET}) == 1
