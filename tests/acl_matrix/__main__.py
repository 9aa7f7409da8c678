"""The answers to clients with different grants, API by API: on Headrace, on Apache Kafka, and where they differ.

    python -m tests.acl_matrix --kafka ~/.cache/headrace-test-tools/kafka-4.3.1/lib

Place: a tool; tests/faults/test_authorization.py runs the same rows on Headrace.
Definitions: a row is one request of cases.py; a column is a client: without grants, with exactly the grants that
the request needs, with a deny as well, with prefixed patterns, a super user, and with all grants but the last.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.operations import ALLOW, DENY, LITERAL, PREFIXED, AclOperation
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.protocol.client.login import Login
from headrace.protocol.client.transport import ClientConfig, connect, exchange
from headrace.protocol.typed import schema
from headrace.storage.errors import CorruptError
from tests.acl_matrix.case import CONSUMER_GROUP, GROUP, OLD_TOPIC, TOPIC, TRANSACTION, Case, Need, build
from tests.acl_matrix.cases import cases
from tests.acl_matrix.servers import MECHANISM, PASSWORD, START_SECONDS, SUPER, headrace_with_acls, kafka_with_acls
from tests.acl_matrix.share_cases import share_groups_in_use
from tests.acl_matrix.streams_cases import streams_groups_in_use

COLUMNS = ("none", "all-but-last", "deny", "allow", "prefixed", "super")
ITERATIONS = 4096
TIMEOUT_MS = 10_000
PAUSE_SECONDS = 0.02
SALT = b"salt of the matrix"
_NAMES = ("name", "topic_name", "group_id")
_AUTHORIZATION = frozenset(code.name for code in ErrorCode if code.name.endswith("authorization_failed"))


class Answered(NamedTuple):
    """What an answer says: authorization errors, how many resources of the rows it lists (-1: it is no list), and
    authorized operations."""

    codes: frozenset[str]
    listed: int
    operations: tuple[int, ...]


@dataclass(frozen=True)
class NoToken:
    """A refused CreateDelegationToken."""

    error_code: ErrorCode = ErrorCode.delegation_token_authorization_failed


class Client:
    """One user's connection."""

    def __init__(self, address: tuple[str, int], user: str, password: str = PASSWORD, trusted: str = "") -> None:
        """`trusted`: a file of certificates; encrypted if it is given. Errors as `connect`."""
        login = Login("SASL_SSL" if trusted else "SASL_PLAINTEXT", MECHANISM, user, password, trusted)
        self._config = ClientConfig((address,), request_timeout_ms=TIMEOUT_MS, login=login)
        self._connection = connect(self._config, address)
        self._versions: dict[int, int] = {}

    def close(self) -> None:
        self._connection.close()

    def ask(self, api_key: int, version: int, values: Mapping[str, Any]) -> Any:
        """The response entity."""
        found = schema(api_key, version)
        request = build(found.request_type, values)
        try:
            return exchange(self._connection, "matrix", request, found.response_type)
        except CorruptError:
            if api_key != ApiKey.CREATE_DELEGATION_TOKEN:
                raise
            return NoToken()  # kio does not read the times of a token that was not made

    def said(self, case: Case, version: int | None = None) -> Answered | None:
        """Return what the answer says, in the newest version unless it is given; None if the API is not served."""
        used = min(self.newest(case.api_key), case.version_max) if version is None else version
        if used < 0:
            return None
        if case.opening is not None:
            api_key, values = case.opening
            self.ask(api_key, self.newest(api_key), values)
        return _said(case, self.ask(case.api_key, used, case.values))

    def newest(self, api_key: int) -> int:
        """The newest version of both sides; -1 if the server does not serve the API."""
        if not self._versions:
            answer = self.ask(ApiKey.API_VERSIONS, 0, {})
            self._versions = {each.api_key: each.max_version for each in answer.api_keys}
        return min(self._versions.get(api_key, -1), APIS[api_key].max_version)


def prepare(address: tuple[str, int]) -> uuid.UUID:
    """Make the topics, the users and their ACLs, as the super user; the id of TOPIC."""
    admin = Client(address, SUPER)
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in (TOPIC, OLD_TOPIC)]
    made = admin.ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics})
    topic_id = next(topic.topic_id for topic in made.topics if topic.name == TOPIC)
    assert isinstance(topic_id, uuid.UUID), made
    rows = cases(topic_id)
    users(admin, [_user(case, column) for case, column in itertools.product(rows, COLUMNS) if column != SUPER])
    acls = [acl for case in rows for column in COLUMNS for acl in _acls(case, column)]
    _create(admin, acls)
    _use_groups(admin, topic_id)
    admin.close()
    return topic_id


def users(admin: Client, names: Sequence[str]) -> None:
    """Make users with PASSWORD."""
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), SALT, ITERATIONS)
    credential = {"mechanism": 1, "iterations": ITERATIONS, "salt": SALT, "salted_password": salted}
    answer = admin.ask(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {"upsertions": [credential | {"name": user} for user in names]}
    )
    assert not any(each.error_code for each in answer.results), answer


def grant(admin: Client, user: str, needs: Iterable[Need]) -> None:
    """Allow the user all of them, by name."""
    _create(admin, [_acl(need, user, need.name, LITERAL) for need in needs])


def _create(admin: Client, acls: list[dict[str, Any]]) -> None:
    for some in _batches(acls, 500):
        created = admin.ask(ApiKey.CREATE_ACLS, 3, {"creations": some})
        assert not any(each.error_code for each in created.results), created


def _batches(every: list[Any], size: int) -> Iterator[list[Any]]:
    for begin in range(0, len(every), size):
        yield every[begin : begin + size]


def _use_groups(admin: Client, topic_id: uuid.UUID) -> None:
    """Make a group with a committed offset, a group of KIP-848 with a member, a token, a transactional id, and share
    groups: so that there is something to hide. RuntimeError if the server refuses."""
    by_label = {case.label: case for case in cases(topic_id)}
    labels = ("OffsetCommit", "ConsumerGroupHeartbeat", "CreateDelegationToken", "InitProducerId-transaction")
    named = [(by_label[label].api_key, by_label[label].values) for label in labels]
    for api_key, values in (*named, *share_groups_in_use(), *streams_groups_in_use()):
        _until_served(admin, api_key, values)


def _until_served(admin: Client, api_key: int, values: Mapping[str, Any]) -> None:
    """Ask until nothing is refused: Kafka makes the topics of its coordinators when they are first used."""
    version = admin.newest(api_key)
    if version < 0:
        return
    until = time.monotonic() + START_SECONDS
    while codes := {code for code in _codes(admin.ask(api_key, version, values)) if code is not ErrorCode.none}:
        if time.monotonic() > until:
            raise RuntimeError(f"the rows cannot be prepared: api_key={api_key} codes={codes}")
        for group in (GROUP, CONSUMER_GROUP):
            admin.ask(ApiKey.FIND_COORDINATOR, 3, {"key": group})
        admin.ask(ApiKey.FIND_COORDINATOR, 3, {"key": TRANSACTION, "key_type": 1})
        time.sleep(PAUSE_SECONDS)


def _user(case: Case, column: str) -> str:
    return SUPER if column == SUPER else f"{case.label}.{column}"


def _acls(case: Case, column: str) -> list[dict[str, Any]]:
    """Return what the column's user of the row is granted."""
    if column in ("none", SUPER) or (column == "all-but-last" and len(case.needs) < 2):
        return []
    needs = case.needs[:-1] if column == "all-but-last" else case.needs
    found = []
    for need in needs:
        is_prefixed = column == "prefixed"
        pattern = need.name[:4] if is_prefixed and need.name.startswith("acl-") else need.name
        acl = _acl(need, _user(case, column), pattern, PREFIXED if is_prefixed else LITERAL)
        found.append(acl)
        if column == "deny":
            found.append(acl | {"operation": int(AclOperation.ALL), "permission_type": DENY})
    return found


def _acl(need: Need, user: str, pattern: str, pattern_type: int) -> dict[str, Any]:
    return {
        "resource_type": int(need.resource_type),
        "resource_name": pattern,
        "resource_pattern_type": pattern_type,
        "principal": f"User:{user}",
        "host": "*",
        "operation": int(need.operation),
        "permission_type": ALLOW,
    }


def outcome(address: tuple[str, int], case: Case, column: str, version: int | None = None) -> Answered | None:
    """Return what the answer says; None if the server does not serve the API."""
    client = Client(address, _user(case, column))
    try:
        return client.said(case, version)
    except OSError:
        return Answered(frozenset({"no answer"}), -1, ())
    finally:
        client.close()


def _said(case: Case, answer: Any) -> Answered:
    listed = sum(name.startswith("acl-") for name in _names(answer, case.counted)) if case.counted else -1
    codes = frozenset(code.name for code in _codes(answer)) & _AUTHORIZATION
    return Answered(codes, listed, tuple(sorted(set(_operations(answer)))))


def _names(answer: Any, counted: str) -> set[str]:
    """Return the names of the elements of the array; a token has none."""
    elements = [answer]
    for array in counted.split("."):
        elements = [each for element in elements for each in getattr(element, array)]
    return {next((getattr(each, name) for name in _NAMES if hasattr(each, name)), "acl-token") for each in elements}


def _codes(entity: Any) -> Iterator[ErrorCode]:
    for _, value in leaves(entity):
        if isinstance(value, ErrorCode):
            yield value


def _operations(entity: Any) -> Iterator[int]:
    for name, value in leaves(entity):
        if name.endswith("authorized_operations") and value > -(2**31):
            yield value


def leaves(entity: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name and value of all fields that are no entities."""
    if is_dataclass(entity):
        for field in fields(entity):
            yield from leaves(getattr(entity, field.name), field.name)
    elif isinstance(entity, tuple):
        for each in entity:
            yield from leaves(each, name)
    else:
        yield name, entity


def matrix(address: tuple[str, int]) -> dict[tuple[str, str], Answered | None]:
    """(row, column) -> what the answer says."""
    rows = cases(prepare(address))
    return {(case.label, column): outcome(address, case, column) for case in rows for column in COLUMNS}


# -- the comparison


def differences(
    ours: Mapping[tuple[str, str], Answered | None], kafkas: Mapping[tuple[str, str], Answered | None]
) -> list[str]:
    """A line for each cell in which the two differ."""
    lines = []
    for cell, said in ours.items():
        other = kafkas[cell]
        if other is None or said is None:
            lines.append(f"{cell[0]} {cell[1]}: not served by {'Kafka' if other is None else 'Headrace'}")
        elif said != other:
            lines.append(f"{cell[0]} {cell[1]}: Headrace {_text(said)}, Kafka {_text(other)}")
    return lines


def _text(said: Answered) -> str:
    parts = sorted(said.codes) or ["allowed"]
    parts += [f"listed={said.listed}"] if said.listed >= 0 else []
    parts += [f"operations={operations:b}" for operations in said.operations]
    return " ".join(parts)


def main() -> None:
    """Run both, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", type=Path, required=True, help="folder with Apache Kafka's jars")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with headrace_with_acls(folder) as address:
            ours = matrix(address)
        with kafka_with_acls(folder, args.kafka) as address:
            kafkas = matrix(address)
    found = differences(ours, kafkas)
    print("\n".join(found))
    print(f"cells={len(ours)} differences={len(found)}")


if __name__ == "__main__":
    main()
