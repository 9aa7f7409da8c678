"""Delegation tokens: who may have one, for how long, and when it expires (KIP-48).

Place: behind the token requests (agent/access/admin/delegation_tokens.py); the active controller drops
the expired. Pure: times come in.
Invariant: a token is its id and the HMAC of that id under the cluster's secret key; the HMAC is nowhere
stored. It never lasts longer than `max_timestamp`; until `expiration_timestamp` it may be renewed, by its owner
and its renewers.
Source: KIP-48; Kafka's DelegationTokenControlManager.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.features import required_format
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import DelegationTokenRecord
from headrace.metastore.log.own_records import RemoveDelegationTokenRecord

RENEWERS_MAX = 32
PRINCIPAL_BYTES_MAX = 512
"""Most bytes of an owner or a renewer, as type:name in UTF-8. Every agent holds every token."""


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """delegation.token.max.lifetime.ms and delegation.token.expiry.time.ms."""

    max_lifetime_ms: int
    expiry_ms: int


def token_hmac(secret_key: str, token_id: str) -> bytes:
    """Return what its bearer shows: HMAC-SHA-512, as in Kafka."""
    return hmac.digest(secret_key.encode(), token_id.encode(), hashlib.sha512)


def find_token(
    tokens: Mapping[str, DelegationTokenRecord], secret_key: str, shown: bytes
) -> DelegationTokenRecord | None:
    """The token with this HMAC; None for one that was never issued, or is gone."""
    own = (token for token in tokens.values() if hmac.compare_digest(token_hmac(secret_key, token.token_id), shown))
    return next(own, None)


def issue_token(
    token_id: str, owner: str, renewers: Sequence[str], *, max_lifetime_ms: int, times: TokenTimes, now_ms: int
) -> DelegationTokenRecord:
    """`max_lifetime_ms` as its requester wants it; none or a negative one asks for the most there is."""
    lifetime_ms = min(max_lifetime_ms, times.max_lifetime_ms) if max_lifetime_ms > 0 else times.max_lifetime_ms
    return DelegationTokenRecord(
        owner=owner,
        renewers=tuple(renewers),
        issue_timestamp=now_ms,
        max_timestamp=now_ms + lifetime_ms,
        expiration_timestamp=now_ms + min(lifetime_ms, times.expiry_ms),
        token_id=token_id,
    )


def is_too_large(owner: str, renewers: Sequence[str]) -> bool:
    """Return whether a token may not have so many renewers, or so long names."""
    longest = max(map(len, map(str.encode, (owner, *renewers))))
    return len(renewers) > RENEWERS_MAX or longest > PRINCIPAL_BYTES_MAX


def owned_by(tokens: Mapping[str, DelegationTokenRecord], owner: str) -> int:
    """Return how many tokens the owner has."""
    return sum(token.owner == owner for token in tokens.values())


def may_renew(token: DelegationTokenRecord, principal: str) -> bool:
    """Return whether the principal may renew, expire and describe it."""
    return principal == token.owner or principal in token.renewers


def is_expired(token: DelegationTokenRecord, now_ms: int) -> bool:
    """Return whether it is no longer good for anything."""
    return min(token.max_timestamp, token.expiration_timestamp) < now_ms


def renewed(token: DelegationTokenRecord, *, period_ms: int, times: TokenTimes, now_ms: int) -> DelegationTokenRecord:
    """The token for `period_ms` more from now on, negative: for as long as renewals last."""
    period_ms = min(period_ms, times.expiry_ms) if period_ms > 0 else times.expiry_ms
    return replace(token, expiration_timestamp=min(token.max_timestamp, now_ms + period_ms))


def ended(token: DelegationTokenRecord, *, period_ms: int, now_ms: int) -> MetadataRecord:
    """Return what makes it end `period_ms` from now: at once when that is negative."""
    if period_ms < 0:
        return RemoveDelegationTokenRecord(token_id=token.token_id)
    return replace(token, expiration_timestamp=min(token.max_timestamp, now_ms + period_ms))


def expired_tokens(image: MetadataImage, now_ms: int) -> list[RemoveDelegationTokenRecord]:
    """Return what drops all that have expired; nothing at a metadata.format that has no record for it."""
    tokens = sorted(image.delegation_tokens.values(), key=lambda token: token.token_id)
    dropped = [RemoveDelegationTokenRecord(token_id=token.token_id) for token in tokens if is_expired(token, now_ms)]
    return dropped if required_format(dropped) <= image.metadata_format else []
