"""Consumers of a share group: they accept, release, reject, renew, forget, hang up and crash; and a last one that reads
what is left.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headrace.agent.groups.share.in_flight import AckType
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.typed import schema
from tests.simulation.shares.cluster import GROUP, KEYS, TOPIC, TOPIC_ID

if TYPE_CHECKING:
    from tests.simulation.shares.world import Line, ShareWorld

Held = dict[tuple[int, int], int]
"""(partition index, offset) -> number of the attempt."""
FINAL = {AckType.GAP, AckType.ACCEPT, AckType.REJECT}
KINDS = (*[AckType.ACCEPT] * 6, AckType.RELEASE, AckType.REJECT, AckType.RENEW, None, None)
"""None: it says nothing."""
MEMBER_SECONDS = 2.5
"""After a heartbeat it is a member for longer than this, by the clock of each agent."""


class ShareConsumer:
    """`is_careful`: it accepts all that it gets, and stays until everything is done."""

    def __init__(self, world: ShareWorld, name: str, *, is_careful: bool = False) -> None:
        self._world, self.name, self._is_careful = world, name, is_careful
        self._rng = random.Random(world.rng.getrandbits(64))
        self._held: Held = {}
        self._joined, self._member_until = False, 0.0

    async def run(self) -> None:
        """Until the schedule is calm, or everything is done."""
        while not self._is_over():
            if not self._joined and not await self._heartbeat(0):
                await asyncio.sleep(0.1)
                continue
            await self._session()
            await asyncio.sleep(self._rng.uniform(0.01, 0.2))

    def _is_over(self) -> bool:
        return self._world.is_done() if self._is_careful else self._world.is_calm

    async def _heartbeat(self, epoch: int) -> bool:
        line, asked_at = self._world.to_coordinator(self._rng), self._world.loop.time()
        if epoch < 0:
            self._world.given_up(self.name)
        make = schema(ApiKey.SHARE_GROUP_HEARTBEAT, 1).request_type
        answer = await line.ask(
            ApiKey.SHARE_GROUP_HEARTBEAT,
            1,
            make(
                group_id=GROUP,
                member_id=self.name,
                member_epoch=epoch,
                rack_id=None,
                subscribed_topic_names=(TOPIC,) if epoch == 0 else None,
            ),
        )
        line.close()
        self._joined = answer is not None and answer.error_code == 0 and epoch >= 0
        self._member_until = asked_at + MEMBER_SECONDS if self._joined else 0.0
        return self._joined

    async def _session(self) -> None:
        """One share session on one connection, until something fails or it has had enough."""
        line = self._world.connect(self._rng)
        self._held = {}
        epoch, turns = 0, 10_000 if self._is_careful else self._rng.randint(1, 12)
        for _ in range(turns):
            if self._is_over():
                break
            acks = self._decide() if epoch else {}
            renews = AckType.RENEW in acks.values()
            separate = bool(acks) and (renews or self._rng.random() < 0.4)
            if separate:
                if not await self._acknowledge(line, epoch, acks, renews):
                    break
                epoch, acks = epoch + 1, {}
            if not await self._fetch(line, epoch, acks):
                break
            epoch += 1
            await asyncio.sleep(self._rng.choice((0.0, 0.02, 0.3)))
            if self._rng.random() < self._world.trouble(0.03):
                await asyncio.sleep(1.5)  # its locks expire
        else:
            if self._rng.random() < 0.6:
                await self._fetch(line, -1, self._decide())
        if self._rng.random() < self._world.trouble(0.3):
            await self._heartbeat(-1)
            self._joined = False
        line.close()

    def _decide(self) -> dict[tuple[int, int], AckType]:
        acks: dict[tuple[int, int], AckType] = {}
        for ref in sorted(self._held):
            kind = AckType.ACCEPT if self._is_careful else self._rng.choice(KINDS)
            if kind is not None:
                acks[ref] = kind
        return acks

    async def _fetch(self, line: Line, epoch: int, acks: dict[tuple[int, int], AckType]) -> bool:
        acks = {ref: kind for ref, kind in acks.items() if kind is not AckType.RENEW}
        kinds = schema(ApiKey.SHARE_FETCH, 2)
        types = _module(kinds)
        batches = _batches(types, acks)
        partitions = tuple(
            types.FetchPartition(partition_index=index, acknowledgement_batches=tuple(batches.get(index, ())))
            for index in range(len(KEYS))
            if epoch == 0 or index in batches
        )
        topics = (types.FetchTopic(topic_id=TOPIC_ID, partitions=partitions),) if partitions else ()
        self._sent(acks)
        if epoch < 0:
            self._world.given_up(self.name)
        answer = await line.ask(
            ApiKey.SHARE_FETCH,
            2,
            types.ShareFetchRequest(
                group_id=GROUP,
                member_id=self.name,
                share_session_epoch=epoch,
                max_wait=timedelta(milliseconds=self._rng.choice((0, 200))),
                min_bytes=1,
                max_bytes=1 << 20,
                max_records=self._rng.choice((1, 5, 20)),
                batch_size=10,
                share_acquire_mode=0,
                is_renew_ack=False,
                topics=topics,
                forgotten_topics_data=(),
            ),
        )
        if answer is None or answer.error_code != 0:
            return False
        for topic in answer.responses:
            for part in topic.partitions:
                if part.acknowledge_error_code == 0:
                    self._answered({ref: kind for ref, kind in acks.items() if ref[0] == part.partition_index})
                for each in part.acquired_records:
                    for offset in range(each.first_offset, each.last_offset + 1):
                        ref = part.partition_index, offset
                        self._held[ref] = each.delivery_count
                        self._world.delivered(self.name, line, ref, each.delivery_count, self._member_until)
        return True

    async def _acknowledge(self, line: Line, epoch: int, acks: dict[tuple[int, int], AckType], renews: bool) -> bool:
        kinds = schema(ApiKey.SHARE_ACKNOWLEDGE, 2)
        types = _module(kinds)
        partitions = tuple(
            types.AcknowledgePartition(partition_index=index, acknowledgement_batches=tuple(found))
            for index, found in _batches(types, acks).items()
        )
        self._sent(acks)
        answer = await line.ask(
            ApiKey.SHARE_ACKNOWLEDGE,
            2,
            types.ShareAcknowledgeRequest(
                group_id=GROUP,
                member_id=self.name,
                share_session_epoch=epoch,
                is_renew_ack=renews,
                topics=(types.AcknowledgeTopic(topic_id=TOPIC_ID, partitions=partitions),),
            ),
        )
        if answer is None or answer.error_code != 0:
            return False
        for topic in answer.responses:
            for part in topic.partitions:
                if part.error_code == 0:
                    self._answered({ref: kind for ref, kind in acks.items() if ref[0] == part.partition_index})
        return True

    def _sent(self, acks: dict[tuple[int, int], AckType]) -> None:
        for ref, kind in acks.items():
            if kind is not AckType.RENEW:
                self._held.pop(ref, None)
                self._world.holds.pop(ref, None)
            if kind in FINAL:
                self._world.finals_sent.add(ref)

    def _answered(self, acks: dict[tuple[int, int], AckType]) -> None:
        for ref, kind in acks.items():
            if kind in FINAL:
                self._world.answered(self.name, ref)


def _module(kinds: Any) -> Any:
    return kinds._request_module


def _batches(types: Any, acks: dict[tuple[int, int], AckType]) -> dict[int, list[Any]]:
    """Neighbours are one batch, with a type for each record or one for all."""
    found: dict[int, list[Any]] = {}
    runs: dict[int, list[list[int]]] = {}
    for index, offset in sorted(acks):
        mine = runs.setdefault(index, [])
        if mine and mine[-1][-1] + 1 == offset:
            mine[-1].append(offset)
        else:
            mine.append([offset])
    for index, each in runs.items():
        for offsets in each:
            kinds = tuple(int(acks[index, offset]) for offset in offsets)
            found.setdefault(index, []).append(
                types.AcknowledgementBatch(
                    first_offset=offsets[0],
                    last_offset=offsets[-1],
                    acknowledge_types=kinds[:1] if len(set(kinds)) == 1 else kinds,
                )
            )
    return found
