"""Requests to halve a topic on a real metastore: what is refused, lost answers, status, and giving it up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.topics.counts.scaling import TopicHalving
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.kip631_records import TOPIC_RESOURCE, ConfigRecord, FeatureLevelRecord
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.partitions.merging import MergePhase
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import OutcomeUnknownError
from tests.agent.cluster.standing_view import StandingView
from tests.manual_clock import ManualClock
from tests.metastore.halving_scenes import HalvingScene, open_halving_scene
from tests.metastore.sessions import create, new_topic, session

pytestmark = pytest.mark.requirement("X5")
DONE = (ErrorCode.none, None)


class LosesAnswers:
    """The metastore; the first answer to a halving, or to its end, is lost on its way."""

    def __init__(self, store: PostgresMetastore) -> None:
        self._store, self._lost = store.topics, set[str]()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        async def answer(*args: Any) -> Any:
            result = await call(*args)
            if name in ("begin_halving", "cancel_halving") and name not in self._lost:
                self._lost.add(name)
                raise OutcomeUnknownError("planned")
            return result

        return answer


class World:
    """An agent that halves topics; `scene.topic` has doubled from two partitions to four."""

    def __init__(self, scene: HalvingScene, clock: ManualClock, api: Any = None) -> None:
        self.scene, self.store = scene, scene.store
        self._view = StandingView(8, node_id=1, broker_epoch=1)
        self._view.before_catch_up = self._load
        settings = Settings(halving_settle_ms=77_000)
        self.halving = TopicHalving(
            self._view, api or scene.store.topics, clock, EffectiveConfigs(settings), lambda: settings
        )
        self.name = scene.topic.name

    async def _load(self) -> None:
        self._view.head = await load_image(self.store.cluster)

    async def begin(self, name: str = "", *excluded: str, validate_only: bool = False) -> tuple[ErrorCode, str | None]:
        return await self.halving.begin_halving(
            name or self.name, 0.0, excluded_groups=excluded, validate_only=validate_only
        )

    async def append(self, *records: Any) -> None:
        assert await self.store.cluster.append_records(await self.store.cluster.metadata_head(), records)


@pytest.fixture
async def scene(metastore: PostgresMetastore, metastore_url: str) -> AsyncIterator[HalvingScene]:
    async with session(metastore_url) as raw:
        scene = await open_halving_scene(metastore, raw)
        await scene.double()
        yield scene


@pytest.fixture
def world(scene: HalvingScene, fake_clock: ManualClock) -> World:
    return World(scene, fake_clock)


async def test_a_halving_begins_once_and_says_how_far_it_is(world: World) -> None:
    await world.scene.commit_offset("slow", 2, 0)
    await world.scene.raw.execute(
        "UPDATE partition_heads SET high_watermark = 9 WHERE partition_key = %s", (world.scene.keys[2],)
    )
    assert await world.halving.halving_status(world.name) is None
    assert await world.begin(validate_only=True) == DONE
    assert await world.halving.halving_status(world.name) is None
    assert await world.begin("", "dead") == DONE
    state = await world.halving.halving_status(world.name)
    assert state is not None
    assert (state.partition_count, state.times.settle_after_ms) == (2, 77_000)
    assert [(pair.phase, pair.lag, pair.behind) for pair in state.pairs] == [
        (MergePhase.DRAINING, 9, ["slow"]),
        (MergePhase.DRAINING, 0, []),
    ]
    assert await world.begin() == (ErrorCode.invalid_partitions, "the topic halves already")
    assert await world.halving.halving_status("nope") is None


async def test_a_lost_answer_is_found_in_the_log(scene: HalvingScene, fake_clock: ManualClock) -> None:
    world = World(scene, fake_clock, LosesAnswers(scene.store))
    later = fake_clock.monotonic() + 9
    assert await world.halving.begin_halving(world.name, later) == DONE
    assert await world.halving.cancel_halving(world.name, later) == DONE


async def test_a_log_that_moves_on_is_a_timeout_in_the_end(world: World, fake_clock: ManualClock) -> None:
    class Moves:
        async def begin_halving(self, *_: Any) -> bool:
            return False

    world.halving._api = Moves()  # type: ignore[assignment]
    assert (await fake_clock.run(world.begin()))[0] == ErrorCode.request_timed_out


async def test_what_does_not_halve(world: World) -> None:
    await create(world.store, new_topic("plain", 4), new_topic("compacted", 4, **{"cleanup.policy": "compact"}))
    refused = {name: await world.begin(name) for name in ("nope", "plain", "compacted")}
    assert {name: code for name, (code, _) in refused.items()} == {
        "nope": ErrorCode.unknown_topic_or_partition,
        "plain": ErrorCode.invalid_partitions,
        "compacted": ErrorCode.invalid_request,
    }
    assert refused["plain"][1] == "a topic halves at its initial count times 2, 4, 8, ...: partitions=4 initial=4"
    compact = ConfigRecord(
        resource_type=TOPIC_RESOURCE, resource_name=world.name, name="cleanup.policy", value="compact,delete"
    )
    await world.append(compact)
    assert (await world.begin())[0] == ErrorCode.invalid_request


async def test_a_topic_that_doubles_does_not_halve(world: World) -> None:
    await world.scene.double(sets_boundaries=False)
    assert await world.begin() == (ErrorCode.invalid_partitions, "the topic doubles: it halves when that is over")


async def test_below_format_4_no_topic_halves(world: World) -> None:
    await world.append(FeatureLevelRecord(name="metadata.format", min_feature_level=1, max_feature_level=3))
    assert (await world.begin())[0] == ErrorCode.unsupported_version


async def test_a_halving_is_given_up_until_a_child_is_merged(world: World) -> None:
    assert (await world.halving.cancel_halving(world.name, 0.0))[0] == ErrorCode.invalid_request
    assert (await world.halving.cancel_halving("nope", 0.0))[0] == ErrorCode.unknown_topic_or_partition
    await world.begin()
    assert await world.halving.cancel_halving(world.name, 0.0) == DONE
    assert await world.begin() == DONE
    await world.scene.pause()
    assert await world.scene.merge()
    assert (await world.halving.cancel_halving(world.name, 0.0))[0] == ErrorCode.invalid_request
