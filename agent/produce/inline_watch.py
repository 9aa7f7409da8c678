"""Look at the slots of inline files, turn them, and tell the policy.

Place: a task of the write path; between the metastore's slots and the pure policy (inline_policy.py).
Invariant: nothing waits for it. While it cannot look, the policy soon no longer trusts what it knows, and files go
into the bucket. Each agent looks for itself: how much of the cluster's bytes per second it may use follows from the
number of live agents, so that no row of the metastore is shared. While the bucket does not answer, no file is inline:
the bucket says when another server has become the metastore, and a PUT stopped an agent that does not hear it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from headrace.agent.cluster.view import ClusterView
from headrace.agent.produce.inline_policy import InlineLimits, InlinePolicy
from headrace.config.settings import Settings
from headrace.metastore.api.inline import NO_SLOT, InlineApi
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

log = logging.getLogger(__name__)

PAUSE_S = 1.0
IDLE_PAUSE_S = 15.0
USED_S = 60.0
"""How long after the last request of a topic with low.latency.enable it looks often."""
SLOT_SHARE = 8
"""A slot is full at this part of what may be held: while two wait for their merge, others are free."""


def inline_limits(settings: Settings, agents: int) -> InlineLimits:
    """Return what the settings say for one of so many agents."""
    return InlineLimits(
        file_bytes=settings.low_latency_file_max_bytes,
        bytes_s=settings.low_latency_max_bytes_per_second / max(agents, 1),
        held_bytes=settings.low_latency_held_max_bytes,
        move_s=settings.low_latency_move_ms / 1000,
    )


class InlineWatch:
    """`settings`: those in force."""

    def __init__(
        self,
        api: InlineApi,
        policy: InlinePolicy,
        view: ClusterView,
        settings: Callable[[], Settings],
        clock: Clock,
        rng: random.Random,
        *,
        reaches_bucket: Callable[[], bool] = lambda: True,
    ) -> None:
        """`reaches_bucket`: whether the bucket answers this process."""
        self._reaches_bucket = reaches_bucket
        self._api, self._policy, self._view, self._settings = api, policy, view, settings
        self._clock, self._rng = clock, rng

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            if not self._view.image.has_low_latency:
                await self._clock.sleep(PAUSE_S)  # to look here costs nothing
                continue
            try:
                await self.look()
            except HeadraceError as error:
                log.warning("slots of inline files not seen: error=%s", error)
            is_used = self._clock.monotonic() - self._policy.asked_at < USED_S
            await self._clock.sleep((PAUSE_S if is_used else IDLE_PAUSE_S) * (0.5 + self._rng.random() / 2))

    async def look(self) -> None:
        """Look once; turn the slots if it is this agent's turn. What the metastore raises."""
        settings, agents = self._settings(), len(self._view.image.live_agents())
        self._policy.change_limits(inline_limits(settings, agents))
        state_at = self._clock.monotonic()
        state = await self._api.inline_state()
        if state.slot == NO_SLOT or (state.held_bytes and self._rng.random() * max(agents, 1) < 1):
            await self._api.rotate_inline_slots(
                settings.low_latency_held_max_bytes // SLOT_SHARE, settings.low_latency_move_ms
            )
            state_at = self._clock.monotonic()
            state = await self._api.inline_state()
        self._policy.learned(state, state_at, reaches_bucket=self._reaches_bucket())
