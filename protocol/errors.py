"""The only place that maps exceptions and results to Kafka error codes.

Place: last step before a response is encoded, on every path.
Invariant: an error code that clients read as "not stored" is used only if the batch is certainly not stored.
An unknown outcome is REQUEST_TIMED_OUT, which librdkafka treats as "possibly stored" (it treats
NOT_LEADER_OR_FOLLOWER and KAFKA_STORAGE_ERROR as "not stored", and so does this module).
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from headrace.metastore.api.commit import BatchOutcome, FileStatus
from headrace.metastore.api.transactions import TransactionVerdict
from headrace.storage.errors import (
    AlreadyExistsError,
    CorruptError,
    DamagedError,
    FencedError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
    UnsupportedFeatureError,
    WrongClusterError,
)
from headrace.storage.records.errors import (
    BatchTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)

INVALID_PARTITION_METADATA = 10_253
"""KIP-253's retriable error, which has no number in Kafka. Only clients that send partition counts receive it."""

READ_FAILED = int(ErrorCode.kafka_storage_error)
"""Outcome of a failed read of a consumer, for any cause but damage: a read can always be repeated, so an unknown
outcome needs no special code, and Java's consumer throws on REQUEST_TIMED_OUT.
"""
READ_DAMAGED = int(ErrorCode.corrupt_message)
"""Outcome of a read at damage in the bucket, which no repetition changes. Java's consumer throws an exception with
topic, partition and offset, and can seek past it (decisions/0092).
"""

SENT_AGAIN = frozenset(
    {
        int(ErrorCode.corrupt_message),
        int(ErrorCode.kafka_storage_error),
        int(ErrorCode.leader_not_available),
        int(ErrorCode.not_leader_or_follower),
        int(ErrorCode.request_timed_out),
        int(ErrorCode.unknown_topic_id),
        int(ErrorCode.unknown_topic_or_partition),
        INVALID_PARTITION_METADATA,
    }
)
"""What a batch may be answered with so that a producer sends it again, under the same sequence."""

_BATCH_CODES: dict[BatchOutcome, int] = {
    BatchOutcome.APPENDED: ErrorCode.none,
    BatchOutcome.DUPLICATE: ErrorCode.none,  # answered with the original's offset, like a first append
    BatchOutcome.OUT_OF_ORDER: ErrorCode.out_of_order_sequence_number,
    BatchOutcome.PRODUCER_FENCED: ErrorCode.invalid_producer_epoch,
    BatchOutcome.UNKNOWN_PARTITION: ErrorCode.unknown_topic_or_partition,
    BatchOutcome.PARTITION_COUNT_MISMATCH: INVALID_PARTITION_METADATA,
    BatchOutcome.LEADER_EPOCH_MISMATCH: ErrorCode.not_leader_or_follower,
    BatchOutcome.PARTITION_MARKED: ErrorCode.not_leader_or_follower,  # every client asks for metadata again
    BatchOutcome.DUPLICATE_SEQUENCE: ErrorCode.duplicate_sequence_number,  # libraries report success without an offset
    BatchOutcome.SENT_BACK: ErrorCode.not_leader_or_follower,  # every client asks for metadata, and sends it again
    BatchOutcome.INVALID_TXN_STATE: ErrorCode.invalid_txn_state,
    BatchOutcome.UNKNOWN_PRODUCER: ErrorCode.invalid_producer_id_mapping,
    BatchOutcome.MOVED_KEY: ErrorCode.invalid_record,  # final; clients continue with the next batch
}

FIRST_PRODUCE_WITH_ABORTABLE = 11
"""The version of Produce from which on clients know TRANSACTION_ABORTABLE, as Kafka answers it."""

_TRANSACTION_CODES: dict[TransactionVerdict, int] = {
    TransactionVerdict.DONE: ErrorCode.none,
    TransactionVerdict.UNKNOWN_PRODUCER: ErrorCode.invalid_producer_id_mapping,
    TransactionVerdict.FENCED: ErrorCode.producer_fenced,
    TransactionVerdict.INVALID_STATE: ErrorCode.invalid_txn_state,
    TransactionVerdict.USED_UP: ErrorCode.invalid_producer_epoch,
}

_TRANSACTION_FAILURES: dict[int, int] = {
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,  # a repeated request gets the first answer
    ErrorCode.kafka_storage_error: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.coordinator_not_available,
}

_FILE_CODES: dict[FileStatus, int] = {
    FileStatus.COMMITTED: ErrorCode.none,
    FileStatus.AGENT_FENCED: ErrorCode.not_leader_or_follower,
    FileStatus.CONDEMNED: ErrorCode.kafka_storage_error,
    FileStatus.TOO_OLD: ErrorCode.request_timed_out,  # an earlier attempt may have succeeded
}

_ERROR_CODES: list[tuple[type[BaseException], int]] = [
    (OutcomeUnknownError, ErrorCode.request_timed_out),
    (TimeoutError, ErrorCode.request_timed_out),
    (FencedError, ErrorCode.not_leader_or_follower),
    (RetryableError, ErrorCode.kafka_storage_error),
    (CorruptError, ErrorCode.corrupt_message),
    (NotFoundError, ErrorCode.unknown_topic_or_partition),
    (AlreadyExistsError, ErrorCode.topic_already_exists),
    (InvalidRecordError, ErrorCode.invalid_record),
    (InvalidTimestampError, ErrorCode.invalid_timestamp),
    (BatchTooLargeError, ErrorCode.message_too_large),
    (UnsupportedMagicError, ErrorCode.unsupported_for_message_format),
    (UnsupportedCodecError, ErrorCode.unsupported_compression_type),
    (InvalidError, ErrorCode.invalid_request),
]

_MEMBERSHIP_CODES: list[tuple[type[BaseException], int]] = [
    (FencedError, ErrorCode.stale_broker_epoch),
    (WrongClusterError, ErrorCode.inconsistent_cluster_id),  # KIP-631's INVALID_CLUSTER_ID
    (UnsupportedFeatureError, ErrorCode.unsupported_version),
    (AlreadyExistsError, ErrorCode.duplicate_broker_registration),
    (RetryableError, ErrorCode.broker_not_available),
]

_ADMIN_CODES: list[tuple[type[BaseException], int]] = [
    (RetryableError, ErrorCode.request_timed_out),  # admin clients retry on it
]

_REASSIGNMENT_CODES: list[tuple[type[BaseException], int]] = [
    (NotFoundError, ErrorCode.unknown_topic_or_partition),
    (InvalidError, ErrorCode.invalid_replica_assignment),
]

_FEATURE_CODES: list[tuple[type[BaseException], int]] = [
    (InvalidError, ErrorCode.invalid_update_version),
]

_COORDINATOR_CODES: dict[int, int] = {
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.coordinator_not_available,
}


def batch_error(outcome: BatchOutcome, transactional_version: int = -1) -> int:
    """The error code for one batch of a committed file. `transactional_version`: of Produce, for a batch in a
    transaction."""
    if outcome is BatchOutcome.INVALID_TXN_STATE and transactional_version >= FIRST_PRODUCE_WITH_ABORTABLE:
        return int(ErrorCode.transaction_abortable)
    return int(_BATCH_CODES[outcome])


def read_error(error: BaseException) -> int:
    """The error code for a partition that a consumer cannot read."""
    return READ_DAMAGED if isinstance(error, DamagedError) else READ_FAILED


def transaction_error(verdict: TransactionVerdict, *, knows_fenced: bool, knows_abortable: bool = False) -> int:
    """The code for a request of a transactional producer. Old clients know neither PRODUCER_FENCED (KIP-588) nor
    TRANSACTION_ABORTABLE (KIP-890)."""
    if verdict is TransactionVerdict.FENCED and not knows_fenced:
        return int(ErrorCode.invalid_producer_epoch)
    if verdict is TransactionVerdict.INVALID_STATE and knows_abortable:
        return int(ErrorCode.transaction_abortable)
    return int(_TRANSACTION_CODES[verdict])


def transaction_failure(error: BaseException) -> int:
    """Return what `error_code` does, for requests of transactional producers: each client finds the coordinator again
    and repeats the request, also if the outcome is unknown.
    """
    code = error_code(error)
    return int(_TRANSACTION_FAILURES.get(code, code))


def file_error(status: FileStatus) -> int:
    """The error code for every batch of a file with this status."""
    return int(_FILE_CODES[status])


_CODE_BY_CLASS: dict[type[BaseException], int] = {}


def error_code(error: BaseException) -> int:
    """The code for an exception of storage/errors.py; UNKNOWN_SERVER_ERROR for any other exception."""
    kind = type(error)
    code = _CODE_BY_CLASS.get(kind)
    if code is None:  # a request may have 10,000 exceptions, of a few classes
        code = _CODE_BY_CLASS[kind] = int(_first_match(_ERROR_CODES, error, ErrorCode.unknown_server_error))
    return code


def coordinator_error(error: BaseException) -> int:
    """Return what `error_code` does, for group requests: fenced and retryable errors make the client find the
    coordinator again.
    """
    code = error_code(error)
    return int(_COORDINATOR_CODES.get(code, code))


def membership_error(error: BaseException) -> int:
    """Return what `error_code` does, for registrations and heartbeats of agents."""
    return int(_first_match(_MEMBERSHIP_CODES, error, error_code(error)))


def admin_error(error: BaseException) -> int:
    """Return what `error_code` does, for changes of the metadata log."""
    return int(_first_match(_ADMIN_CODES, error, error_code(error)))


def feature_error(error: BaseException) -> int:
    """Return what `error_code` does, for refused updates of feature levels."""
    return int(_first_match(_FEATURE_CODES, error, error_code(error)))


def reassignment_error(error: BaseException) -> int:
    """Return what `error_code` does, for refused partition reassignments."""
    return int(_first_match(_REASSIGNMENT_CODES, error, error_code(error)))


def _first_match(codes: list[tuple[type[BaseException], int]], error: BaseException, otherwise: int) -> int:
    return next((code for kind, code in codes if isinstance(error, kind)), otherwise)
