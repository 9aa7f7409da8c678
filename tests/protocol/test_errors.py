"""Results become Kafka error codes, and none of them is false."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from headrace.metastore.api.commit import BatchOutcome, FileStatus
from headrace.protocol.errors import batch_error, coordinator_error, error_code, file_error
from headrace.storage import errors

READ_AS_NOT_STORED = {ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error, ErrorCode.not_enough_replicas}
"""Codes after which librdkafka counts a message as certainly not persisted."""


def _all_errors(kind: type[errors.HeadraceError] = errors.HeadraceError) -> list[type[errors.HeadraceError]]:
    """The product's: other tests of this process may have defined theirs."""
    children = [child for child in kind.__subclasses__() if child.__module__.startswith("headrace.")]
    return [kind] + [deeper for child in children for deeper in _all_errors(child)]


def test_every_outcome_and_status_has_a_code() -> None:
    assert {batch_error(outcome) for outcome in (BatchOutcome.APPENDED, BatchOutcome.DUPLICATE)} == {0}
    for outcome in set(BatchOutcome) - {BatchOutcome.APPENDED, BatchOutcome.DUPLICATE}:
        assert batch_error(outcome) > 0, outcome
    assert [status for status in FileStatus if file_error(status) == 0] == [FileStatus.COMMITTED]


def test_every_error_has_a_code() -> None:
    """Each one that this process has imported: which those are is not known when tests are collected."""
    for kind in _all_errors():
        error = kind.__new__(kind)  # all arguments of its constructor
        expected_unknown = kind is errors.HeadraceError
        assert (error_code(error) == ErrorCode.unknown_server_error) == expected_unknown, kind.__name__
        assert coordinator_error(error) != 0, kind.__name__


def test_an_unknown_outcome_is_never_read_as_not_stored() -> None:
    unknown = errors.OutcomeUnknownError("x")
    codes = {
        error_code(unknown),
        coordinator_error(unknown),
        file_error(FileStatus.TOO_OLD),
    }
    assert codes == {ErrorCode.request_timed_out}
    assert not codes & READ_AS_NOT_STORED


def test_what_clients_should_retry_is_retriable() -> None:
    for error in (errors.ThrottledError("x"), errors.UnavailableError("x"), errors.FencedError("x")):
        assert ErrorCode(error_code(error)).retriable
        assert ErrorCode(coordinator_error(error)).retriable
    assert ErrorCode(batch_error(BatchOutcome.LEADER_EPOCH_MISMATCH)).retriable
    assert ErrorCode(file_error(FileStatus.AGENT_FENCED)).retriable


def test_a_group_client_looks_for_its_coordinator() -> None:
    assert coordinator_error(errors.FencedError("x")) == ErrorCode.not_coordinator
    assert coordinator_error(errors.UnavailableError("x")) == ErrorCode.coordinator_not_available
    assert coordinator_error(errors.InvalidError("x")) == ErrorCode.invalid_request
