"""Members of many consumer groups (KIP-848) on raw connections, which fetch nothing: they join, heartbeat and commit.

Runs as a separate process (started by load.benchmarks.groups), so that the agent's CPU is counted alone. Prints
`prepared` when each member has its partitions; after a line on stdin it runs for `seconds`, then prints one JSON
object. Members of a group share some connections. A member that is late does not catch up: it says how much less it
did.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import random
import struct
import sys
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.client.messages import ApiMessage, Frame, message
from headrace.protocol.api_keys import ApiKey

HEARTBEAT = message(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1)
COMMIT = message(ApiKey.OFFSET_COMMIT, 9)
JOIN_PAUSE_SECONDS = 0.5
JOINS_AT_ONCE = 200


@dataclass
class Done:
    """What all members did."""

    heartbeats: int = 0
    commits: int = 0
    offsets: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    """Of commits, seconds."""


class MemberLine:
    """A connection; answers come in the order of the requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: deque[asyncio.Future[memoryview]] = deque()
        self._receiving = asyncio.create_task(self._receive())

    async def call(self, api: ApiMessage, **request: Any) -> Any:
        """Send a request; the entity of its answer."""
        frame = Frame(api.api_key, api.version, api.encode(**request), flexible=api.flexible)
        data = frame.build_request_header(correlation_id=0, client_id="bench").encode() + frame.encode()
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._writer.write(struct.pack(">i", len(data)) + data)
        return api.decode((await answer)[4 + api.flexible :])

    async def close(self) -> None:
        """Close the connection."""
        self._receiving.cancel()
        self._writer.close()

    async def _receive(self) -> None:
        while True:
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            self._waiting.popleft().set_result(memoryview(await self._reader.readexactly(size)))


class SimulatedMember:
    """One member. `partitions` of the topic, by index, as the group gave them to it."""

    def __init__(self, line: MemberLine, group_id: str, topic: str, done: Done) -> None:
        self._line, self._group_id, self._topic, self._done = line, group_id, topic, done
        self._member_id = str(uuid.uuid4())
        self._epoch = 0
        self._topic_id: uuid.UUID | None = None
        self._offset = 0
        self.partitions: tuple[int, ...] = ()

    async def join(self) -> None:
        """Become a member; it has no partitions yet, maybe."""
        await self._beat(
            subscribed_topic_names=(self._topic,),
            rebalance_timeout=datetime.timedelta(seconds=60),
            topic_partitions=(),
        )

    async def settle(self) -> None:
        """Tell the group what the member owns: all that it was given."""
        owned: tuple[Any, ...] = ()
        if self._topic_id is not None:
            owned = (HEARTBEAT.make("TopicPartitions", topic_id=self._topic_id, partitions=self.partitions),)
        await self._beat(topic_partitions=owned)

    async def heartbeat(self) -> None:
        """Say nothing new."""
        await self._beat(topic_partitions=None)
        self._done.heartbeats += 1

    async def commit(self) -> None:
        """Commit an offset of each partition."""
        self._offset += 1
        partitions = tuple(
            COMMIT.make(
                "OffsetCommitRequestPartition",
                partition_index=index,
                committed_offset=self._offset,
                committed_leader_epoch=-1,
                committed_metadata="",
            )
            for index in self.partitions
        )
        began = time.monotonic()
        answer = await self._line.call(
            COMMIT,
            group_id=self._group_id,
            generation_id_or_member_epoch=self._epoch,
            member_id=self._member_id,
            group_instance_id=None,
            topics=(COMMIT.make("OffsetCommitRequestTopic", name=self._topic, partitions=partitions),),
        )
        self._done.latencies.append(time.monotonic() - began)
        codes = Counter(each.error_code.name for topic in answer.topics for each in topic.partitions)
        self._done.offsets += codes.pop("none", 0)
        self._done.errors += codes
        self._done.commits += 1

    async def _beat(self, **fields: Any) -> None:
        answer = await self._line.call(
            HEARTBEAT, group_id=self._group_id, member_id=self._member_id, member_epoch=self._epoch, **fields
        )
        if answer.error_code.name != "none":
            self._done.errors[answer.error_code.name] += 1
            return
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            given = answer.assignment.topic_partitions
            self.partitions = tuple(index for each in given for index in each.partitions)
            self._topic_id = given[0].topic_id if given else None


async def _prepare(work: dict[str, Any], done: Done) -> list[SimulatedMember]:
    """Members that have all partitions of the topic in each group."""
    groups, limit = [], asyncio.Semaphore(JOINS_AT_ONCE)
    for number in range(work["groups"]):
        lines = [
            MemberLine(*await asyncio.open_connection(work["host"], work["port"])) for _ in range(work["connections"])
        ]
        groups.append(
            [
                SimulatedMember(lines[n % len(lines)], f"group-{number}", work["topic"], done)
                for n in range(work["members"])
            ]
        )

    async def limited(call: Callable[[], Any]) -> None:
        async with limit:
            await call()

    every = [member for members in groups for member in members]
    await asyncio.gather(*(limited(member.join) for member in every))
    unsettled = groups
    while unsettled:
        await asyncio.gather(*(limited(member.settle) for members in unsettled for member in members))
        unsettled = [members for members in unsettled if not _is_settled(members, work["partitions"])]
        await asyncio.sleep(JOIN_PAUSE_SECONDS)
    done.errors.clear()
    return every


def _is_settled(members: list[SimulatedMember], partitions: int) -> bool:
    return sorted(index for member in members for index in member.partitions) == list(range(partitions))


async def run(work: dict[str, Any]) -> dict[str, Any]:
    """Do what `work` says; the object that `main` prints."""
    done = Done()
    members = await _prepare(work, done)
    print("prepared", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    rng, pause = random.Random(1), float(work["pause_seconds"])
    until = time.monotonic() + work["seconds"]

    async def each(member: SimulatedMember, act: Callable[[], Any]) -> None:
        await asyncio.sleep(rng.uniform(0, pause))
        while time.monotonic() < until:
            due = time.monotonic() + pause
            await act()
            await asyncio.sleep(max(0.0, min(due, until) - time.monotonic()))

    acts = [(member, member.heartbeat) for member in members]
    acts += [(member, member.commit) for member in members] if work["commits"] else []
    await asyncio.gather(*(each(member, act) for member, act in acts))
    return {**vars(done), "errors": dict(done.errors)}


def main() -> None:
    """Take the work as JSON from the command line."""
    print(json.dumps(asyncio.run(run(json.loads(sys.argv[1])))))


if __name__ == "__main__":
    main()
