"""DescribeUserScramCredentials (key 50) and AlterUserScramCredentials (51), version 0.

Place: request fields to UserScramKeysRecords in the metadata log (UserScramCredentialRecords below SCRAM_KEYS_FORMAT),
and the image back to fields.
Invariant: the client sends a salted and hashed password, never the password; neither is ever returned. Each user gets
a separate result, and the request as a whole never an error: librdkafka aborts its process
on a top-level error of key 50. A user with one refused change keeps all credentials.
Source: KIP-554; Kafka's ScramControlManager.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from kio.schema.alter_user_scram_credentials.v0.request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kio.schema.alter_user_scram_credentials.v0.response import AlterUserScramCredentialsResult
from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest
from kio.schema.describe_user_scram_credentials.v0.response import CredentialInfo as AnsweredCredentialInfo
from kio.schema.describe_user_scram_credentials.v0.response import DescribeUserScramCredentialsResult
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import PATIENCE_SECONDS, LogChange, Verdict
from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.features import SCRAM_KEYS_FORMAT
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import CredentialInfo
from headrace.metastore.log.own_records import RemoveUserScramCredentialRecord, ScramKeys
from headrace.metastore.log.scram_keys import MECHANISMS, SealedKeys, as_keys, credentials_record
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)
_Change = ScramCredentialDeletion | ScramCredentialUpsertion

ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 16_384


class DescribeUserScramCredentials:
    """The handler of key 50."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DescribeUserScramCredentialsRequest)
        known = (await self._newest_image()).scram_credentials
        times = Counter(user.name for user in entity.users or ())
        results = tuple(_described(schema, name, known, times[name]) for name in times or sorted(known))
        response = schema.response(error_code=ErrorCode.none, error_message=None, results=results)
        return reply(request, response)

    async def _newest_image(self) -> MetadataImage:
        """The current image if the metastore is unavailable, as a broker of Kafka answers without its controller."""
        try:
            return await self._cluster.catch_up()
        except HeadraceError as error:
            logger.warning("describing credentials from an older image: error=%s", error)
            return self._cluster.image


class AlterUserScramCredentials:
    """The handler of key 51."""

    def __init__(self, change: LogChange, sealed_keys: SealedKeys) -> None:
        self._change, self._sealed_keys = change, sealed_keys

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, AlterUserScramCredentialsRequest)
        refused: dict[str, Verdict] = {}

        def judge(image: MetadataImage) -> list[MetadataRecord]:
            refused.clear()
            refused.update(_refusals(image, entity))
            return _records(image, entity, refused, self._sealed_keys)

        verdict = await self._change.append(judge, request.received_at + PATIENCE_SECONDS)
        users = dict.fromkeys(change.name for change in _changes(entity))
        answers = {user: refused.get(user, verdict) for user in users}
        results = tuple(
            schema.make(AlterUserScramCredentialsResult, user=user, error_code=code, error_message=message)
            for user, (code, message) in answers.items()
        )
        return reply(request, schema.response(results=results))


def _described(
    schema: Schema, user: str, known: Mapping[str, tuple[CredentialInfo | ScramKeys, ...]], times: int
) -> DescribeUserScramCredentialsResult:
    code, message, infos = ErrorCode.none, None, known.get(user, ())
    if times > 1:
        code, message, infos = ErrorCode.duplicate_resource, f"duplicate user: {user}", ()
    elif not infos:
        code, message = ErrorCode.resource_not_found, f"user has no credentials: {user}"
    return schema.make(
        DescribeUserScramCredentialsResult,
        user=user,
        error_code=code,
        error_message=message,
        credential_infos=tuple(
            schema.make(AnsweredCredentialInfo, mechanism=info.mechanism, iterations=info.iterations) for info in infos
        ),
    )


def _changes(entity: AlterUserScramCredentialsRequest) -> tuple[_Change, ...]:
    return *entity.deletions, *entity.upsertions


def _refusals(image: MetadataImage, entity: AlterUserScramCredentialsRequest) -> dict[str, Verdict]:
    """User -> the first reason why its changes are refused."""
    times = Counter((change.name, change.mechanism) for change in _changes(entity))
    both = {deletion.name for deletion in entity.deletions} & {upsertion.name for upsertion in entity.upsertions}
    judged: list[tuple[_Change, Verdict | None]] = [
        (change, _deletion_refusal(image, change)) for change in entity.deletions
    ]
    judged += [(change, _upsertion_refusal(change)) for change in entity.upsertions]
    refused: dict[str, Verdict] = {}
    for change, refusal in judged:
        if times[change.name, change.mechanism] > 1 or (refusal is None and change.name in both):
            refusal = Verdict(ErrorCode.duplicate_resource, "a user cannot be altered twice in one request")
        if refusal is not None:
            refused.setdefault(change.name, refusal)
    return refused


def _user_refusal(change: _Change) -> Verdict | None:
    if not change.name:
        return Verdict(ErrorCode.unacceptable_credential, "user name must not be empty")
    if change.mechanism not in MECHANISMS.values():
        return Verdict(ErrorCode.unsupported_sasl_mechanism, f"unknown SCRAM mechanism: {change.mechanism}")
    return None


def _deletion_refusal(image: MetadataImage, deletion: ScramCredentialDeletion) -> Verdict | None:
    if refusal := _user_refusal(deletion):
        return refusal
    if deletion.mechanism not in {info.mechanism for info in image.scram_credentials.get(deletion.name, ())}:
        return Verdict(ErrorCode.resource_not_found, "credential does not exist")
    return None


def _upsertion_refusal(upsertion: ScramCredentialUpsertion) -> Verdict | None:
    if refusal := _user_refusal(upsertion):
        return refusal
    reason = None
    if upsertion.iterations < ITERATIONS_MIN:
        reason = f"too few iterations, at least {ITERATIONS_MIN} are needed"
    elif upsertion.iterations > ITERATIONS_MAX:
        reason = f"too many iterations, at most {ITERATIONS_MAX} are allowed"
    elif not upsertion.salt:
        reason = "empty salt"
    elif not upsertion.salted_password:
        reason = "empty salted password"
    return None if reason is None else Verdict(ErrorCode.unacceptable_credential, reason)


def _records(
    image: MetadataImage, entity: AlterUserScramCredentialsRequest, refused: Iterable[str], sealed_keys: SealedKeys
) -> list[MetadataRecord]:
    """One record for each user with changed credentials."""
    old = image.scram_credentials
    new = {
        change.name: dict[int, CredentialInfo | ScramKeys]((info.mechanism, info) for info in old.get(change.name, ()))
        for change in _changes(entity)
        if change.name not in refused
    }
    for deletion in entity.deletions:
        if deletion.name in new:
            del new[deletion.name][deletion.mechanism]
    for upsertion in entity.upsertions:
        if upsertion.name in new:
            info = CredentialInfo(
                mechanism=upsertion.mechanism,
                salt=upsertion.salt,
                salted_password=upsertion.salted_password,
                iterations=upsertion.iterations,
            )
            has_keys = image.metadata_format >= SCRAM_KEYS_FORMAT
            new[upsertion.name][upsertion.mechanism] = (
                sealed_keys.sealed(image, upsertion.name, as_keys(info)) if has_keys else info
            )
    return [
        _record(user, tuple(infos[mechanism] for mechanism in sorted(infos)))
        for user, infos in new.items()
        if infos != {info.mechanism: info for info in old.get(user, ())}
    ]


def _record(user: str, held: tuple[CredentialInfo | ScramKeys, ...]) -> MetadataRecord:
    return credentials_record(user, held) if held else RemoveUserScramCredentialRecord(user_name=user)
