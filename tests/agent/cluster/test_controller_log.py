"""What the active controller does to the metadata log: snapshots, cuts, expired tokens, old passwords, metrics."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from headrace.agent.cluster.controller.upkeep_steps import MetadataSnapshots
from headrace.agent.cluster.follower import MetadataFollower
from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.log.delegation_tokens import TokenTimes, issue_token
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import CredentialInfo, FeatureLevelRecord, UserScramCredentialRecord
from headrace.metastore.log.snapshot import decode_snapshot, encode_snapshot, load_snapshot
from tests.agent.cluster.candidate import TIMES, Candidate
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.manual_clock import ManualClock
from tests.patch import Patch


@pytest.mark.requirement("C3", "C14")
async def test_snapshots_are_made_on_size_and_on_age_and_the_log_is_cut(
    api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    api.add_topic("small", 1)
    one = Candidate(api, 1, replace(TIMES, snapshot_interval_ms=100_000))
    await _pass(fake_clock, 90, one)
    assert api.snapshots == [], "neither big nor old"
    await _pass(fake_clock, 60, one)
    assert [snapshot.end_offset for snapshot in api.snapshots] == [2]
    assert load_snapshot(api.snapshots[0].data) == one.follower.image
    await _pass(fake_clock, 250, one)
    assert len(api.snapshots) == 1, "nothing new, so none on age"

    api.add_topic("big", 30_000)
    await _pass(fake_clock, 70, one)
    assert [snapshot.end_offset for snapshot in api.snapshots] == [2, 30_003]
    assert api.log_start == 1
    assert one.metric("metadata_snapshot_lag_records") == 0
    late = MetadataFollower(api)
    assert await late.catch_up() == one.follower.image
    await one.controller.stop()


async def _pass(clock: ManualClock, seconds: float, candidate: Candidate) -> None:
    """Snapshots are encoded on a thread: virtual time waits for it."""
    for _ in range(round(seconds / 10)):
        await clock.advance(10)
        turn = candidate.controller._steps.steps["metadata snapshots"].turn
        if turn is not None:
            await asyncio.wait([turn])


async def test_a_snapshot_that_does_not_read_back_is_not_kept(
    api: FakeClusterApi, fake_clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "headrace.agent.cluster.controller.upkeep_steps.encode_snapshot",
        lambda image: encode_snapshot(MetadataImage()),
    )
    api.add_topic("orders", 3)
    one = Candidate(api, 1, replace(TIMES, snapshot_bytes=1))
    await _pass(fake_clock, 60, one)
    assert "does not read back: end_offset=4" in caplog.text
    assert api.snapshots == []
    assert one.controller.is_active
    await one.controller.stop()


@pytest.mark.requirement("C14")
async def test_lag_and_what_was_followed_are_counted(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    api.add_topic("orders", 9)
    one = Candidate(api, 1)
    await fake_clock.advance(0.1)
    assert one.metric("controller_metadata_lag_records") == 10
    assert one.metric("metadata_committed_records_total") == 10
    await fake_clock.advance(1)
    assert one.metric("controller_metadata_lag_records") == 0
    api.add_agent(1)
    await fake_clock.advance(1)
    assert one.metric("metadata_committed_records_total") == 12
    assert one.metric("metadata_offset") == 12
    await one.controller.stop()


@pytest.mark.parametrize("level", [1, 2])
async def test_expired_tokens_are_dropped_where_the_log_has_a_record_for_it(
    api: FakeClusterApi, fake_clock: ManualClock, level: int
) -> None:
    times = TokenTimes(max_lifetime_ms=60_000, expiry_ms=60_000)
    now_ms = fake_clock.wall_ms()
    api.append(
        FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=level),
        issue_token("short", "User:ann", (), max_lifetime_ms=5_000, times=times, now_ms=now_ms),
        issue_token("long", "User:ann", (), max_lifetime_ms=-1, times=times, now_ms=now_ms),
    )
    active, standby = Candidate(api, 1), Candidate(api, 2)
    await fake_clock.advance(4)
    assert active.follower.image.delegation_tokens.keys() == {"short", "long"}
    head = len(api.log)
    await fake_clock.advance(4)
    assert standby.follower.image.delegation_tokens.keys() == ({"long"} if level == 2 else {"short", "long"})
    await fake_clock.advance(4)
    assert len(api.log) == head + (level == 2), "once"
    for candidate in (active, standby):
        await candidate.controller.stop()


def _user_with_password(password: bytes) -> UserScramCredentialRecord:
    info = CredentialInfo(mechanism=1, salt=b"s", salted_password=password, iterations=4096)
    return UserScramCredentialRecord(user_name="a", credential_infos=(info,))


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("is_planted", [False, True])
async def test_after_the_format_is_raised_no_salted_password_is_left(
    api: FakeClusterApi, fake_clock: ManualClock, patch: Patch, *, is_planted: bool
) -> None:
    """Neither in the log nor in a snapshot. The planted bug: one snapshot, and the log before the older one stays."""
    if is_planted:
        patch.replace(MetadataSnapshots, "_repeat", _repeats_nothing)
    password = b"a salted password"
    api.append(FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=3))
    api.append(_user_with_password(password))
    one = Candidate(api, 1)
    await fake_clock.advance(40)
    assert any(password in record for record in api.log)
    api.append(FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=4))
    await fake_clock.advance(120)
    held = [*api.log[api.log_start :], *(b"".join(decode_snapshot(kept.data)[1]) for kept in api.snapshots)]
    assert any(password in part for part in held) == is_planted
    assert len(one.follower.image.scram_credentials["a"]) == 1
    head = len(api.log)
    await fake_clock.advance(120)
    assert len(api.log) == head, "once"
    await one.controller.stop()


async def _repeats_nothing(self: MetadataSnapshots, epoch: int, image: MetadataImage) -> bool:
    return False
