"""Reasons for refusing a producer's batch, one class per Kafka error.

    CorruptError                     CORRUPT_MESSAGE: checksum, length or framing
    InvalidError
    ├── InvalidRecordError           INVALID_RECORD: the header has impossible values
    ├── InvalidTimestampError        INVALID_TIMESTAMP
    ├── BatchTooLargeError           MESSAGE_TOO_LARGE
    ├── UnsupportedMagicError        UNSUPPORTED_FOR_MESSAGE_FORMAT
    └── UnsupportedCodecError        UNSUPPORTED_COMPRESSION_TYPE

Place: raised by check.py and codec.py, mapped to Kafka's numbers in protocol/errors.py.
Invariant: each error refuses one batch; the other batches of the request are validated separately.
"""

from __future__ import annotations

from headrace.storage.errors import InvalidError


class InvalidRecordError(InvalidError):
    """The header contradicts itself, or has values that a producer may not set."""


class InvalidTimestampError(InvalidError):
    """The producer set a timestamp type that only a broker sets."""


class BatchTooLargeError(InvalidError):
    """The batch exceeds the topic's limit, or the limit for opening batches."""


class UnsupportedMagicError(InvalidError):
    """A message set of format 0 or 1 (before KIP-98), or of a format not yet known."""


class UnsupportedCodecError(InvalidError):
    """The attributes name an unknown compression codec."""
