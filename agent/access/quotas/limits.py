"""Quotas of a client: which limit applies, how much of it the client owes. Pure: times come in.

Place: under enforcement.py. A QuotaTable is built from each image with other quotas: Kafka's precedence of user and
client id. There is one bucket per limit and agent; service.py brings what other agents used of a shared one.
Invariant: the first of the eight levels that has the key applies, and no other. Clients share a bucket exactly as in
Kafka: a limit of a user is one for all client ids of the user, a default is one for each name.
What was used is never forgotten. A use is never refused: it makes a debt, and the client waits until the
debt is paid. In each agent's bucket the level is the cluster's: own use is subtracted at once, that of others when
it is reported. Until then the agent assumes that others use what is left of the rate after its own share.
Source: KIP-55, KIP-546, KIP-612; Kafka's DefaultQuotaCallback and ConnectionQuotas.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from headrace.metastore.log.kip631_records import EntityData

BURST_SECONDS = 1.0
"""After a pause a client may use so many seconds of its rate at once."""
MUTATION_BURST_SECONDS = 10.0
"""The same as BURST_SECONDS, for changes of partitions: they come seldom and many at once (KIP-599)."""


class Bucket:
    """Bucket of one agent alone."""

    __slots__ = ("_at", "_burst_seconds", "_level", "generation", "rate", "share", "used")

    def __init__(self, rate: float, now: float, burst_seconds: float = BURST_SECONDS) -> None:
        self.rate = self.share = rate
        self._burst_seconds = burst_seconds
        self._level = self._most
        self._at = now
        self.used = 0.0
        """What this agent used, in all."""
        self.generation = 0
        """Another one for each bucket of an agent."""

    def spend(self, amount: float, now: float) -> float:
        """Use it; the seconds to wait until nothing is owed."""
        self._fill(now)
        self._level -= amount
        self.used += amount
        return -self._level / self.share if self._level < 0 else 0.0

    def wait(self, now: float) -> float:
        """Spend nothing: return how long to wait."""
        return self.spend(0.0, now)

    def level(self, now: float) -> float:
        """Return what may be used at once; negative: a debt."""
        self._fill(now)
        return self._level

    def is_full(self, now: float) -> bool:
        """Return whether a new bucket would be the same."""
        return self.level(now) >= self._most

    def change_rate(self, rate: float, now: float) -> None:
        """The quota was changed. A debt stays."""
        self._fill(now)
        self.share *= rate / self.rate
        self.rate = rate
        self._level = min(self._level, self._most)

    @property
    def _most(self) -> float:
        return self.rate * self._burst_seconds

    def _fill(self, now: float) -> None:
        self._level = min(self._most, self._level + self.share * (now - self._at))
        self._at = now


class SharedBucket(Bucket):
    """Shared bucket of all agents together."""

    __slots__ = ("_corrected_at",)

    def __init__(self, rate: float, now: float, burst_seconds: float = BURST_SECONDS) -> None:
        super().__init__(rate, now, burst_seconds)
        self._corrected_at = now

    def correct(self, used_by_others: float, share: float, now: float) -> None:
        """Set what other agents used since the last call, and the share of the rate that this agent fills with
        until the next.
        """
        self._fill(now)
        assumed = (self.rate - self.share) * (now - self._corrected_at)
        self._level = min(self._most, self._level + assumed - used_by_others)
        self.share, self._corrected_at = share, now


USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCE = "producer_byte_rate"
FETCH = "consumer_byte_rate"
REQUEST = "request_percentage"
MUTATION = "controller_mutation_rate"
CONNECTION = "connection_creation_rate"
SHARED = (PRODUCE, FETCH, MUTATION)
"""Kinds with one value for the cluster; the others protect one agent, and are its own."""

Quotas = Mapping[tuple[EntityData, ...], Mapping[str, float]]


class BucketKey(NamedTuple):
    """Clients that share one bucket. None: of all of them."""

    kind: str
    user: str | None
    client_id: str | None


class Limit(NamedTuple):
    """A limit and its bucket. `rate` per second; of REQUEST in percent of one agent's event loop."""

    key: BucketKey
    rate: float


class _Place(enum.Enum):
    """The place for an entity without a name (the default is None): no name of a client can be one of these."""

    ABSENT = enum.auto()
    OWN = enum.auto()


_ABSENT, _OWN, _DEFAULT = _Place.ABSENT, _Place.OWN, None
_Name = str | _Place | None
_NOTHING: Mapping[str, float] = {}
_LEVELS: tuple[tuple[_Name, _Name, bool, bool], ...] = (
    (_OWN, _OWN, True, True),
    (_OWN, _DEFAULT, True, True),
    (_OWN, _ABSENT, True, False),
    (_DEFAULT, _OWN, True, True),
    (_DEFAULT, _DEFAULT, True, True),
    (_DEFAULT, _ABSENT, True, False),
    (_ABSENT, _OWN, False, True),
    (_ABSENT, _DEFAULT, False, True),
)
"""The user's part, the client id's part, and which of them the bucket belongs to."""


class QuotaTable:
    """The quotas of one image, by entity."""

    def __init__(self, quotas: Quotas) -> None:
        self._clients: dict[tuple[_Name, _Name], Mapping[str, float]] = {}
        self._addresses: dict[str | None, float] = {}
        for entity, values in quotas.items():
            names = {part.entity_type: part.entity_name for part in entity}
            if IP in names:
                if CONNECTION in values:
                    self._addresses[names[IP]] = values[CONNECTION]
            else:
                place = (_place(names, USER), _place(names, CLIENT_ID))
                self._clients[place] = values
        self.kinds = frozenset(kind for values in self._clients.values() for kind in values)
        """Of which some client has a limit."""

    def limit(self, kind: str, user: str, client_id: str) -> Limit | None:
        """None: the client has no limit of this kind."""
        for user_place, client_place, by_user, by_client in _LEVELS:
            entity = (
                user if user_place is _OWN else user_place,
                client_id if client_place is _OWN else client_place,
            )
            rate = self._clients.get(entity, _NOTHING).get(kind)
            if rate is not None:
                return Limit(BucketKey(kind, user if by_user else None, client_id if by_client else None), rate)
        return None

    def rate_of(self, key: BucketKey) -> float | None:
        """Return the rate of a bucket that another agent has; None: no client of this bucket has a limit."""
        found = self.limit(key.kind, key.user or "", key.client_id or "")
        return found.rate if found is not None and found.key == key else None

    def connection_rate(self, address: str) -> float | None:
        """New connections per second of the address; None: no limit."""
        return self._addresses.get(address, self._addresses.get(None))


def _place(names: Mapping[str, str | None], entity_type: str) -> _Name:
    return names.get(entity_type, _ABSENT)
