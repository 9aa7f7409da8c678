"""CreateDelegationToken (key 38), RenewDelegationToken (39), ExpireDelegationToken (40), DescribeDelegationToken
(41).

Place: request fields to DelegationTokenRecords in the metadata log, and the image back to fields.
Invariant: a client that is not authenticated, or by a token, cannot create, see or change tokens: as in Kafka, it gets
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, so a token cannot prolong itself. Tokens for other owners, and the view of their
tokens, need ACLs that are enforced. A token with a lost response expires unused.
Source: KIP-48, KIP-373 (version 3); metastore/log/delegation_tokens.py for the rules.
"""

from __future__ import annotations

import base64
import datetime
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kio.schema.create_delegation_token.v3.request import CreateDelegationTokenRequest
from kio.schema.describe_delegation_token.v3.request import DescribeDelegationTokenRequest
from kio.schema.describe_delegation_token.v3.response import DescribedDelegationToken, DescribedDelegationTokenRenewer
from kio.schema.errors import ErrorCode
from kio.schema.expire_delegation_token.v2.request import ExpireDelegationTokenRequest
from kio.schema.renew_delegation_token.v2.request import RenewDelegationTokenRequest

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.cluster.log_change import PATIENCE_SECONDS, LogChange
from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.delegation_tokens import (
    TokenTimes,
    ended,
    find_token,
    is_expired,
    is_too_large,
    issue_token,
    may_renew,
    owned_by,
    renewed,
    token_hmac,
)
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import DelegationTokenRecord
from headrace.metastore.log.own_records import RemoveDelegationTokenRecord
from headrace.protocol.errors import admin_error
from headrace.protocol.request import ANONYMOUS, Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

USER = "User"
_OF = AclResource.USER
NEVER = -1
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class DelegationTokens:
    """The four handlers. `rng` draws token ids; times are this agent's wall clock, because tokens are valid for
    hours.
    """

    change: LogChange
    rng: random.Random
    in_force: SettingsInForce
    authorizer: Authorizer | None
    """The authorizer; None if ACLs are not enforced: then there are no grants."""
    on_limit: Callable[[str], None] = lambda setting: None
    """Called with the limit that refuses a token."""

    @property
    def secret_key(self) -> str | None:
        """delegation.token.secret.key: None if tokens are disabled."""
        return self.in_force.current().delegation_token_secret_key

    @property
    def _most_of_an_owner(self) -> int:
        return self.in_force.current().delegation_token_max_per_owner

    @property
    def times(self) -> TokenTimes:
        """The cluster's lifetimes."""
        settings = self.in_force.current()
        return TokenTimes(settings.delegation_token_max_lifetime_ms, settings.delegation_token_expiry_time_ms)

    async def create(self, request: Request) -> Response:
        """The handler of key 38, versions 1-3."""
        schema, entity = decode(request, CreateDelegationTokenRequest)
        requester = request.connection.principal or ANONYMOUS
        owner = requester
        if getattr(entity, "owner_principal_name", None):
            owner = f"{entity.owner_principal_type}:{entity.owner_principal_name}"
        renewers = [f"{renewer.principal_type}:{renewer.principal_name}" for renewer in entity.renewers]
        token = issue_token(
            base64.urlsafe_b64encode(self.rng.randbytes(16)).decode().rstrip("="),
            owner,
            renewers,
            max_lifetime_ms=_milliseconds(entity.max_lifetime),
            times=self.times,
            now_ms=self.change.clock.wall_ms(),
        )
        code = self._refusal(request)
        if (
            code is ErrorCode.none
            and owner != requester
            and not self._may(request, AclOperation.CREATE_TOKENS, _OF, owner)
        ):
            code = ErrorCode.delegation_token_authorization_failed
        if code is ErrorCode.none and any(renewer.principal_type != USER for renewer in entity.renewers):
            code = ErrorCode.invalid_principal_type
        if code is ErrorCode.none and is_too_large(owner, renewers):
            self.on_limit("delegation.token.renewers")
            code = ErrorCode.invalid_request
        if code is ErrorCode.none:
            code = await self._append(token, request.received_at + PATIENCE_SECONDS)
        return reply(request, self._created(schema, code, token, requester))

    async def _append(self, token: DelegationTokenRecord, deadline: float) -> ErrorCode:
        has_too_many = False

        def judge(image: MetadataImage) -> list[MetadataRecord]:
            nonlocal has_too_many
            if token.token_id in image.delegation_tokens:
                return []
            has_too_many = owned_by(image.delegation_tokens, token.owner) >= self._most_of_an_owner
            return [] if has_too_many else [token]

        code, _ = await self.change.append(judge, deadline)
        if code is not ErrorCode.none or not has_too_many:
            return code
        self.on_limit("delegation.token.max.per.owner")
        return ErrorCode.policy_violation

    async def renew(self, request: Request) -> Response:
        """The handler of key 39, versions 1-2."""
        schema, entity = decode(request, RenewDelegationTokenRequest)
        period_ms = _milliseconds(entity.renew_period)
        return await self._alter(
            request,
            schema,
            entity.hmac,
            lambda token, now_ms: renewed(token, period_ms=period_ms, times=self.times, now_ms=now_ms),
        )

    async def expire(self, request: Request) -> Response:
        """The handler of key 40, versions 1-2."""
        schema, entity = decode(request, ExpireDelegationTokenRequest)
        period_ms = _milliseconds(entity.expiry_time_period)
        return await self._alter(
            request, schema, entity.hmac, lambda token, now_ms: ended(token, period_ms=period_ms, now_ms=now_ms)
        )

    async def describe(self, request: Request) -> Response:
        """The handler of key 41, versions 1-3: tokens of the requested owners that the requester may renew."""
        schema, entity = decode(request, DescribeDelegationTokenRequest)
        code, tokens = self._refusal(request), list[DelegationTokenRecord]()
        if code is ErrorCode.none:
            try:
                image = await self.change.cluster.catch_up()
            except HeadraceError as error:
                code = ErrorCode(admin_error(error))
            else:
                owners = None
                if entity.owners is not None:
                    owners = [f"{owner.principal_type}:{owner.principal_name}" for owner in entity.owners]
                tokens = self._visible(request, image, owners)
        described = tuple(self._described(schema, token) for token in tokens)
        return reply(request, schema.response(error_code=code, tokens=described))

    def _may(self, request: Request, operation: AclOperation, resource_type: AclResource, name: str) -> bool:
        return self.authorizer is not None and self.authorizer.require(request, operation, resource_type, name)

    def _visible(
        self, request: Request, image: MetadataImage, owners: Iterable[str] | None
    ) -> list[DelegationTokenRecord]:
        """`owners` None: tokens of all owners; empty: none."""
        principal = request.connection.principal or ANONYMOUS
        wanted = (
            token
            for token in image.delegation_tokens.values()
            if owners is None or any(may_renew(token, owner) for owner in owners)
        )
        seen = [
            token
            for token in wanted
            if may_renew(token, principal)
            or self._may(request, AclOperation.DESCRIBE, AclResource.DELEGATION_TOKEN, token.token_id)
            or self._may(request, AclOperation.DESCRIBE_TOKENS, _OF, token.owner)
        ]
        return sorted(seen, key=lambda token: token.token_id)

    def _refusal(self, request: Request) -> ErrorCode:
        """The reason why the requester may not use tokens, in Kafka's order."""
        if request.connection.principal in (None, ANONYMOUS) or request.connection.is_by_token:
            return ErrorCode.delegation_token_request_not_allowed
        return ErrorCode.none if self.secret_key is not None else ErrorCode.delegation_token_auth_disabled

    async def _alter(
        self,
        request: Request,
        schema: Schema,
        shown: bytes,
        change: Callable[[DelegationTokenRecord, int], MetadataRecord],
    ) -> Response:
        code, expires_at = self._refusal(request), NEVER
        if code is ErrorCode.none:
            judged: list[MetadataRecord | ErrorCode] = []
            now_ms = self.change.clock.wall_ms()

            def judge(image: MetadataImage) -> list[MetadataRecord]:
                judged[:] = [self._judge(image, shown, request.connection.principal or ANONYMOUS, now_ms, change)]
                return [record for record in judged if isinstance(record, MetadataRecord)]

            code, _ = await self.change.append(judge, request.received_at + PATIENCE_SECONDS)
            match judged:
                case [ErrorCode() as refusal]:
                    code = refusal
                case [DelegationTokenRecord(expiration_timestamp=at)] if code is ErrorCode.none:
                    expires_at = at
                case _ if code is ErrorCode.none:
                    expires_at = now_ms
        return reply(
            request,
            schema.response(error_code=code, expiry_timestamp=_timestamp(expires_at)),
        )

    def _judge(
        self,
        image: MetadataImage,
        shown: bytes,
        principal: str,
        now_ms: int,
        change: Callable[[DelegationTokenRecord, int], MetadataRecord],
    ) -> MetadataRecord | ErrorCode:
        """The record to append, or the error. An expired token can only be removed."""
        token = find_token(image.delegation_tokens, self.secret_key or "", shown)
        if token is None:
            return ErrorCode.delegation_token_not_found
        if not may_renew(token, principal):
            return ErrorCode.delegation_token_owner_mismatch
        record = change(token, now_ms)
        if is_expired(token, now_ms) and not isinstance(record, RemoveDelegationTokenRecord):
            return ErrorCode.delegation_token_expired
        return record

    def _created(self, schema: Schema, code: ErrorCode, token: DelegationTokenRecord, requester: str) -> Any:
        """Return the answer of a failed request: the owner of the token, and no token fields."""
        owner_type, _, owner_name = token.owner.partition(":")
        requester_type, _, requester_name = requester.partition(":")
        is_there = code is ErrorCode.none
        return schema.response(
            error_code=code,
            principal_type=owner_type,
            principal_name=owner_name,
            token_requester_principal_type=requester_type,
            token_requester_principal_name=requester_name,
            issue_timestamp=_timestamp(token.issue_timestamp if is_there else NEVER),
            expiry_timestamp=_timestamp(token.expiration_timestamp if is_there else NEVER),
            max_timestamp=_timestamp(token.max_timestamp if is_there else NEVER),
            token_id=token.token_id if is_there else "",
            hmac=token_hmac(self.secret_key or "", token.token_id) if is_there else b"",
        )

    def _described(self, schema: Schema, token: DelegationTokenRecord) -> DescribedDelegationToken:
        owner_type, _, owner_name = token.owner.partition(":")
        return schema.make(
            DescribedDelegationToken,
            principal_type=owner_type,
            principal_name=owner_name,
            token_requester_principal_type=owner_type,
            token_requester_principal_name=owner_name,
            issue_timestamp=token.issue_timestamp,
            expiry_timestamp=token.expiration_timestamp,
            max_timestamp=token.max_timestamp,
            token_id=token.token_id,
            hmac=token_hmac(self.secret_key or "", token.token_id),
            renewers=tuple(
                schema.make(DescribedDelegationTokenRenewer, principal_type=kind, principal_name=name)
                for kind, _, name in (renewer.partition(":") for renewer in token.renewers)
            ),
        )


def _milliseconds(period: datetime.timedelta) -> int:
    return period // datetime.timedelta(milliseconds=1)


def _timestamp(at_ms: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(milliseconds=at_ms)
