"""Keys of the APIs that agents use between each other, and no client.

Place: below agent/fetch/zone_cache, agent/forward and agent/peer_health, which have the bytes of their requests.
Invariant: a key is never used again for something else: agents of two releases meet during an upgrade.
"""

from __future__ import annotations

ENVELOPE_KEY = 31_296
OPEN_KEY = 31_297
PEER_HEALTH_KEY = 31_298
ZONE_CACHE_KEY = 31_299
BETWEEN_AGENTS = frozenset({PEER_HEALTH_KEY, ZONE_CACHE_KEY, OPEN_KEY, ENVELOPE_KEY})
"""Their handlers serve only an agent that knows the cluster's secret."""
