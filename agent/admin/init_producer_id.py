"""InitProducerId (key 22, versions 0-5): a new producer id for every idempotent producer.

Place: before a producer's first batch; the commit uses the ids as key of the producer state.
Invariant: an id is assigned only once, and with epoch 0, also to a producer that asks to keep its
id with a higher epoch (KIP-360): a new id cannot conflict with the sequences of the old one. The metastore gives each
block of ids to one agent only; the unused rest of a crashed agent's block is lost. A producer is younger than its id's
block by BLOCK_SECONDS at most, so that a commit can tell from the block how old the producer is (decisions/0012).
Source: KIP-98, KIP-360. Transactions are not supported yet.
"""

from __future__ import annotations

import asyncio
import logging

from kio.schema.errors import ErrorCode

from headrace.agent.refusal_log import OnRefused, unheard
from headrace.metastore.api.commit import CommitApi
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import NO_THROTTLE, decode, reply
from headrace.storage.clock import Clock
from headrace.storage.errors import OutcomeUnknownError, UnavailableError

logger = logging.getLogger(__name__)

BLOCK_IDS = 1_000
BLOCK_SECONDS = 600.0
"""What is left of a block after this time is not used: half of producer_id_block_ms (allocate_producer_ids.sql)."""


class ProducerIds:
    """Assigns ids from this agent's block."""

    def __init__(self, api: CommitApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._block = range(0)
        self._asked_at = clock.monotonic()
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """An id that is never assigned again. Errors as allocate_producer_ids."""
        async with self._refill:
            now = self._clock.monotonic()
            if not self._block or now - self._asked_at >= BLOCK_SECONDS:
                self._asked_at = now  # before the metastore leases it: the block is younger than we believe
                self._block = await self._api.allocate_producer_ids(BLOCK_IDS)
            producer_id, self._block = self._block[0], self._block[1:]
            return producer_id


class InitProducerId:
    """The handler."""

    def __init__(self, producer_ids: ProducerIds, on_refused: OnRefused = unheard) -> None:
        self._producer_ids = producer_ids
        self._on_refused = on_refused

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        producer_id, code = -1, ErrorCode.none
        if entity.transactional_id is not None:
            # The only code that every client library treats as final at once; others are retried.
            code = ErrorCode.transactional_id_authorization_failed
            self._on_refused(request, "transactions are not supported")
        elif (getattr(entity, "producer_id", -1) == -1) != (getattr(entity, "producer_epoch", -1) == -1):
            code = ErrorCode.invalid_request  # as in Kafka: an id without an epoch, or the reverse
        else:
            try:
                producer_id = await self._producer_ids.next()
            except (UnavailableError, OutcomeUnknownError) as error:
                # As Kafka answers while it waits for a block; clients retry.
                logger.warning("cannot allocate producer ids: error=%s", error)
                code = ErrorCode.coordinator_load_in_progress
        response = schema.response(
            throttle_time=NO_THROTTLE,
            error_code=code,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
        )
        return reply(request, response)
