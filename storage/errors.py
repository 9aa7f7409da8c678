"""Every exception that Headrace raises on purpose, in one tree.

    HeadraceError
    ├── RetryableError          nothing happened: try again later
    │   ├── ThrottledError        the store asked for fewer requests
    │   └── UnavailableError      a dependency is unreachable or timed out before it did anything
    │       └── BadTransferError    each of several reads was altered on its way: the bytes may be right
    ├── FencedError             another incarnation owns this role now: stop, do not retry
    ├── OutcomeUnknownError     it may or may not have happened: repeat it with the same id
    ├── CorruptError            stored or received bytes do not match their checksum or format
    │   └── DamagedError          the bucket has such bytes: several reads in a row returned the same
    └── InvalidError            the request itself is wrong; a retry cannot succeed
        ├── NotFoundError         the named thing does not exist
        ├── AlreadyExistsError    the named thing exists and must not be replaced
        ├── WrongClusterError     the caller belongs to another cluster
        ├── UnsupportedFeatureError  the caller lacks a feature level that the cluster uses
        ├── IllegalTransitionError  a lifecycle record does not follow its key's state
        ├── TruncatedError        the metadata log was truncated: start from a snapshot
        └── TooManyElementsError  a request has more array elements than one request may have

Place: raised anywhere, mapped to Kafka error codes in one file only (protocol/errors.py).
Invariant: the class says what the caller must do; the message says what happened.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of all. `str(error)` is a lowercase event with its fields."""


class RetryableError(HeadraceError):
    """Nothing happened, and a retry may succeed."""


class ThrottledError(RetryableError):
    """The dependency is healthy but asked for less traffic (S3 503 SlowDown, 429).

    `retry_after_s`: how long it asked to wait, in seconds; None if it did not say.
    """

    def __init__(self, text: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class UnavailableError(RetryableError):
    """The dependency could not be reached and certainly did nothing."""


class BadTransferError(UnavailableError):
    """Stored bytes were altered in each of several reads, not twice in the same way: later reads may be right."""


class FencedError(HeadraceError):
    """The caller's epoch is no longer the current one."""


class OutcomeUnknownError(HeadraceError):
    """The request was sent and its response was lost: repeat it under the same id to learn the result."""


class CorruptError(HeadraceError):
    """Bytes contradict their own checksum, length or format."""


class DamagedError(CorruptError):
    """The bucket has other bytes than were stored: several reads in a row returned the same wrong ones."""


class InvalidError(HeadraceError):
    """The input is wrong; the same input always fails."""


class NotFoundError(InvalidError):
    """The named object, topic or row does not exist."""


class AlreadyExistsError(InvalidError):
    """The named thing exists and must not be replaced."""


class WrongClusterError(InvalidError):
    """The cluster id is that of another cluster."""


class UnsupportedFeatureError(InvalidError):
    """An active feature level is outside the range that the caller supports."""


class IllegalTransitionError(InvalidError):
    """A segment's or partition's change does not follow the state of its key."""


class TooManyElementsError(InvalidError):
    """A request's arrays have more elements in total than one request may have."""


class TruncatedError(InvalidError):
    """These records were removed from the log: a snapshot has their content."""
