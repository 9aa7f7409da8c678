"""What the read path is made of where it can be traced: the parts themselves, or ones that also report their times.

Place: given to fetch/service.py by the code that composes a process; agent/serve/tracing/fetch_spans.py has the other
parts.
Invariant: UNTRACED are the plain parts: then the read path calls nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.agent.fetch.deliver import Delivery
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.waiters import Waiter
from headrace.protocol.request import RequestHandler
from headrace.storage.objects.store import ObjectStore


def _same_store(store: ObjectStore) -> ObjectStore:
    return store


def _same_handler(handle: RequestHandler) -> RequestHandler:
    return handle


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSteps:
    """Each makes a part of the arguments of the plain one, or wraps one."""

    handle: Callable[[RequestHandler], RequestHandler] = _same_handler
    """Around the whole request."""
    locator: Callable[..., Locator] = Locator
    waiter: Callable[[], Waiter] = Waiter
    delivery: Callable[..., Delivery] = Delivery
    store: Callable[[ObjectStore], ObjectStore] = _same_store
    """Around the GETs."""


UNTRACED = FetchSteps()
