"""Why a producer's batch is refused, one class per answer that Kafka has for it.

    CorruptError                     CORRUPT_MESSAGE: checksum, length or framing
    InvalidError
    ├── InvalidRecordError           INVALID_RECORD: the header claims what cannot be
    ├── InvalidTimestampError        INVALID_TIMESTAMP
    ├── BatchTooLargeError           MESSAGE_TOO_LARGE
    ├── UnsupportedMagicError        UNSUPPORTED_FOR_MESSAGE_FORMAT
    └── UnsupportedCodecError        UNSUPPORTED_COMPRESSION_TYPE

Place: raised by check.py and codec.py, mapped to Kafka's numbers in protocol/errors.py.
Invariant: each of them condemns one batch; its neighbours are judged on their own.
"""

from __future__ import annotations

from headrace.storage.errors import InvalidError


class InvalidRecordError(InvalidError):
    """The header contradicts itself, or claims what no producer may."""


class InvalidTimestampError(InvalidError):
    """The producer stamped what only a broker stamps."""


class BatchTooLargeError(InvalidError):
    """The batch is larger than the topic takes, or than anybody here opens."""


class UnsupportedMagicError(InvalidError):
    """A message set of format 0 or 1 (before KIP-98), or of a format not yet known."""


class UnsupportedCodecError(InvalidError):
    """The attributes name a compression codec that does not exist."""
