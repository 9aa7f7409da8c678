"""controller_mutation_rate: partitions that one request may create or delete (KIP-599).

Place: asked by CreateTopics, CreatePartitions and DeleteTopics, topic by topic.
Invariant: a topic is admitted as a whole while nothing is owed. From the version on that knows
THROTTLING_QUOTA_EXCEEDED, the others are refused with it and nothing happens to them; below it they are admitted, and
the connection is throttled for longer.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.agent.access.quotas.enforcement import QuotaEnforcer
from headrace.agent.access.quotas.limits import BucketKey
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import Request, Response

MESSAGE = "The throttling quota has been exceeded."
"""Kafka's words."""
_FIRST_STRICT = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}


class MutationQuota:
    """Quota of one request without a limit."""

    def admits(self, partitions: int) -> bool:
        """Return whether so many partitions may be created or deleted now; they count then."""
        return True

    def throttle(self, response: Response) -> Response:
        """The response, with the time for which its client is throttled."""
        return response


class LimitedMutations(MutationQuota):
    """Quota of one request with a limit."""

    def __init__(self, enforcer: QuotaEnforcer, key: BucketKey, *, is_strict: bool) -> None:
        self._enforcer, self._key, self._is_strict = enforcer, key, is_strict

    def admits(self, partitions: int) -> bool:
        if self._is_strict and self._enforcer.spend(self._key, 0.0):
            return False
        self._enforcer.spend(self._key, partitions)
        return True

    def throttle(self, response: Response) -> Response:
        response.throttle_seconds = self._enforcer.spend(self._key, 0.0)
        if response.throttle_seconds:
            self._enforcer.metrics.throttled(self._key, response.throttle_seconds)
        return response


MutationQuotas = Callable[[Request], MutationQuota]
_NO_LIMIT = MutationQuota()


def unlimited(request: Request) -> MutationQuota:
    """Return unlimited quotas, for handlers without quotas."""
    return _NO_LIMIT


def mutation_quotas(enforcer: QuotaEnforcer) -> MutationQuotas:
    """Return the quotas of changes by the quotas of the newest image."""

    def of(request: Request) -> MutationQuota:
        key = enforcer.mutation_key(request)
        if key is None:
            return _NO_LIMIT
        return LimitedMutations(enforcer, key, is_strict=request.api_version >= _FIRST_STRICT[ApiKey(request.api_key)])

    return of
