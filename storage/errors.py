"""Every exception that Headrace raises on purpose, in one tree.

    HeadraceError
    ├── RetryableError          try again later; nothing happened
    │   ├── ThrottledError        the store asked us to slow down
    │   └── UnavailableError      a dependency is unreachable or timed out before it did anything
    ├── FencedError             another incarnation owns this role now: stop, do not retry
    ├── OutcomeUnknownError     it may or may not have happened: ask again with the same id, never guess
    ├── CorruptError            stored or received bytes are not what their checksum or format says
    └── InvalidError            the request itself is wrong; retrying cannot help
        ├── NotFoundError         the named thing does not exist
        ├── AlreadyExistsError    the named thing exists and must not be replaced
        ├── WrongClusterError     the asker belongs to another cluster
        ├── UnsupportedFeatureError  the asker does not support a feature level that the cluster uses
        └── TruncatedError        the metadata log no longer goes back so far: start from a snapshot

Place: raised anywhere, mapped to Kafka error codes in one file only (protocol/errors.py).
Invariant: the kind tells the caller what to do; the message tells a person what happened.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of all. `str(error)` is a lowercase event with its fields."""


class RetryableError(HeadraceError):
    """Nothing happened and trying again may work."""


class ThrottledError(RetryableError):
    """The dependency is healthy but asked for less traffic (S3 503 SlowDown, 429)."""


class UnavailableError(RetryableError):
    """The dependency could not be reached, and it certainly did nothing."""


class FencedError(HeadraceError):
    """The caller's epoch is no longer the current one."""


class OutcomeUnknownError(HeadraceError):
    """The operation was sent and its answer was lost: repeat it under the same id to learn what happened."""


class CorruptError(HeadraceError):
    """Bytes contradict their own checksum, length or format."""


class InvalidError(HeadraceError):
    """The input is wrong and stays wrong."""


class NotFoundError(InvalidError):
    """The named object, topic or row does not exist."""


class AlreadyExistsError(InvalidError):
    """The named thing exists and must not be replaced."""


class WrongClusterError(InvalidError):
    """The cluster id is another one's."""


class UnsupportedFeatureError(InvalidError):
    """An active feature level lies outside what the asker supports."""


class TruncatedError(InvalidError):
    """These records are no longer kept: a snapshot holds what they said."""
