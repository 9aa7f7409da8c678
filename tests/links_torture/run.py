"""One run: producers write at the source, servers of both sides are killed, and in the end both sides are equal.

    source     three nodes of Apache Kafka, replication 3: one at a time is killed and started again
    compactor  the only one, so that each kill stops the copy wherever it is

Invariant: an independent consumer decides, after the producers ended and the link says that nothing is left. What a
consumer of the copy got meanwhile must be what the source has, in its order.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cli.bench.topic_admin import create_topic
from tests.links_torture.headrace import COMMAND, headrace
from tests.links_torture.movers import GroupMover
from tests.links_torture.reading import LiveReader, Place, differences, ends, read_all
from tests.links_torture.writers import PARTITIONS, PLAIN, TRANSACTIONAL, SourceWriter
from tests.torture.kills.kafka_servers import KafkaServers

LINK = "torture"
BETWEEN_SECONDS = 20.0, 40.0
AWAY_SECONDS = 1.0, 5.0
REPLICAS = 3
LOOK_SECONDS = 5.0
WHOLE_SECONDS = 300.0
Say = Callable[[str], None]


@dataclass
class LinksOutcome:
    """What a run found. `offences`: empty if it is clean."""

    kills: Counter[str] = field(default_factory=Counter)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    read_live: int = 0
    lags: list[float] = field(default_factory=list)
    """Seconds behind the source, looked at every LOOK_SECONDS."""
    whole_seconds: float = 0.0
    """How long the copy took to be whole after the last kill and the last record."""
    problems: Counter[str] = field(default_factory=Counter)
    """Texts of `headrace link show` on the way."""
    offences: list[str] = field(default_factory=list)


async def run_links(directory: Path, seed: int, seconds: float, bytes_per_s: int, say: Say) -> LinksOutcome:
    """Run it; offences do not raise. Logs stay in `directory`."""
    outcome, rng = LinksOutcome(), random.Random(seed)
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(KafkaServers(directory))
        here, compactor = await stack.enter_async_context(headrace(directory))
        for topic in (PLAIN, TRANSACTIONAL):
            await asyncio.to_thread(create_topic, source.bootstrap, topic, PARTITIONS, REPLICAS)
        await asyncio.to_thread(
            _link, here, "create", LINK, "--from", source.bootstrap, "--topics", f"{PLAIN},{TRANSACTIONAL}",
            "--groups", "mover.*",
        )  # fmt: skip
        writers = [
            SourceWriter(topic, source.bootstrap, bytes_per_s // 2, random.Random(rng.random()))
            for topic in (PLAIN, TRANSACTIONAL)
        ]
        for writer in writers:
            writer.start()
            stack.push_async_callback(asyncio.to_thread, writer.stop)
        await _until_followed(here, outcome, {PLAIN, TRANSACTIONAL})
        places = [(topic, index) for topic in (PLAIN, TRANSACTIONAL) for index in range(PARTITIONS)]
        live = LiveReader(here, places)
        live.start()
        stack.push_async_callback(asyncio.to_thread, live.stop)
        mover = GroupMover(
            source.bootstrap, here, [PLAIN, TRANSACTIONAL], lambda group: _is_copied(here, group), random.Random(seed)
        )
        mover.start()
        stack.push_async_callback(asyncio.to_thread, mover.stop)
        say("both topics are copied; kills begin")
        until = time.monotonic() + seconds
        schedules = random.Random(rng.random()), random.Random(rng.random())

        async def strike_source(kill_rng: random.Random) -> None:
            node = kill_rng.randrange(len(source.nodes))
            say(f"kill of node {node} of the source")
            await source.nodes[node].kill()
            await asyncio.sleep(kill_rng.uniform(*AWAY_SECONDS))
            await source.nodes[node].start()
            outcome.kills["nodes of the source"] += 1

        async def strike_compactor(kill_rng: random.Random) -> None:
            say("kill of the compactor")
            await compactor.kill()
            await asyncio.sleep(kill_rng.uniform(*AWAY_SECONDS))
            await compactor.start()
            outcome.kills["compactor"] += 1

        await asyncio.gather(
            _strikes(strike_source, schedules[0], until),
            _strikes(strike_compactor, schedules[1], until),
            _watch(here, outcome, until),
        )
        await asyncio.to_thread(mover.stop)
        outcome.counts["groups"], outcome.offences = mover.counts, [*outcome.offences, *mover.offences]
        for writer in writers:
            await asyncio.to_thread(writer.stop)
            outcome.counts[writer.topic] = writer.counts
        say("producers ended")
        began = time.monotonic()
        await _until_same_ends(source.bootstrap, here, places, outcome)
        outcome.whole_seconds = time.monotonic() - began
        say("the copy is whole")
        await asyncio.to_thread(_compare, source.bootstrap, here, places, live, outcome)
        promoted = await asyncio.to_thread(_link, here, "promote", LINK, "--timeout", "120")
        say(f"promoted: {', '.join(promoted['topics'])}")
    return outcome


async def _strikes(strike: Callable[[random.Random], Awaitable[None]], rng: random.Random, until: float) -> None:
    """Kill again and again, the last time before `until`."""
    while (wait := rng.uniform(*BETWEEN_SECONDS)) < until - time.monotonic() - AWAY_SECONDS[1]:
        await asyncio.sleep(wait)
        await strike(rng)


async def _watch(here: str, outcome: LinksOutcome, until: float) -> None:
    """Look how far the copy is behind."""
    while time.monotonic() < until:
        await asyncio.sleep(LOOK_SECONDS)
        shown = await asyncio.to_thread(_link, here, "show", LINK)
        outcome.lags.append(max(topic["lag_ms"] for topic in shown["topics"]) / 1000)
        outcome.problems.update({text for topic in shown["topics"] for text in topic["problems"]})


async def _until_followed(here: str, outcome: LinksOutcome, topics: set[str]) -> None:
    """Return once the copies had all that the source had at a moment; it is written to meanwhile."""
    until = time.monotonic() + WHOLE_SECONDS
    while True:
        shown = await asyncio.to_thread(_link, here, "show", LINK)
        found = {topic["name"]: topic for topic in shown["topics"]}
        if topics <= found.keys() and all(found[name]["lag_ms"] >= 0 for name in topics):
            return
        if time.monotonic() > until:
            outcome.offences.append(f"the source is not followed after {WHOLE_SECONDS:.0f} s: {shown}")
            return
        await asyncio.sleep(1.0)


async def _until_same_ends(source: str, here: str, places: list[Place], outcome: LinksOutcome) -> None:
    """Return once consumers see the same ends on both sides: what a link says of itself may be of a moment ago."""
    until = time.monotonic() + WHOLE_SECONDS
    while (theirs := await asyncio.to_thread(ends, source, places)) != await asyncio.to_thread(ends, here, places):
        if time.monotonic() > until:
            outcome.offences.append(f"the copy is not whole after {WHOLE_SECONDS:.0f} s: the source ends at {theirs}")
            return
        await asyncio.sleep(1.0)


def _compare(source: str, here: str, places: list[Place], live: LiveReader, outcome: LinksOutcome) -> None:
    theirs, their_ends = read_all(source, places)
    ours, our_ends = read_all(here, places)
    if their_ends != our_ends:
        outcome.offences.append(f"positions at the end: source {their_ends}, copy {our_ends}")
    until = time.monotonic() + WHOLE_SECONDS
    while sum(map(len, live.rows.values())) < sum(map(len, ours.values())) and time.monotonic() < until:
        time.sleep(1.0)
    live.stop()
    outcome.read_live = sum(map(len, live.rows.values()))
    for place in places:
        where = f"{place[0]}-{place[1]}"
        outcome.offences += differences(theirs[place], ours[place], where)
        outcome.offences += differences(theirs[place], live.rows[place], f"{where}, read live")
    for topic in (PLAIN, TRANSACTIONAL):
        own = [place for place in places if place[0] == topic]
        outcome.records[topic] = sum(len(theirs[place]) for place in own)
        outcome.offsets[topic] = sum(their_ends[place] for place in own)


def _is_copied(here: str, group: str) -> bool:
    """Return whether the link has copied offsets of the group."""
    found = _link(here, "groups", LINK)["groups"]
    return any(each["group_id"] == group and each["copied_ms"] >= 0 and each["offsets"] for each in found)


def _link(here: str, *words: str) -> dict:  # type: ignore[type-arg]
    """Return what `headrace link` prints as JSON."""
    command = [*COMMAND, "link", *words, "--json", "-b", here]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
