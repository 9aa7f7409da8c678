"""The APIs about access: ACLs, delegation tokens, quotas and users. Kafka's brokers forward changing requests to the
controller; every agent serves them."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator

from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest
from kio.schema.alter_client_quotas.v1.response import AlterClientQuotasResponse
from kio.schema.alter_user_scram_credentials.v0.request import AlterUserScramCredentialsRequest
from kio.schema.alter_user_scram_credentials.v0.response import AlterUserScramCredentialsResponse
from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest
from kio.schema.create_acls.v3.response import CreateAclsResponse
from kio.schema.create_delegation_token.v3.request import CreateDelegationTokenRequest
from kio.schema.create_delegation_token.v3.response import CreateDelegationTokenResponse
from kio.schema.delete_acls.v3.request import DeleteAclsRequest
from kio.schema.delete_acls.v3.response import DeleteAclsMatchingAcl, DeleteAclsResponse
from kio.schema.errors import ErrorCode
from kio.schema.renew_delegation_token.v2.request import RenewDelegationTokenRequest
from kio.schema.renew_delegation_token.v2.response import RenewDelegationTokenResponse

from headrace.agent.access.admin.acls import CreateAcls, DeleteAcls, DescribeAcls
from headrace.agent.access.admin.client_quotas import AlterClientQuotas, DescribeClientQuotas
from headrace.agent.access.admin.scram_credentials import AlterUserScramCredentials, DescribeUserScramCredentials
from headrace.agent.access.audited_changes import Change, of_entities
from headrace.agent.access.authorization.ask import GatedRequest
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, Rule, mirrored, whole
from headrace.agent.apis.api_row import ApiRow
from headrace.agent.apis.parts import AccessParts
from headrace.agent.apis.shared_rules import DESCRIBE_CLUSTER
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import Response

_CLUSTER = AclResource.CLUSTER
_OWN_TOKENS = Rule(None, (), "the token's owner and its renewers")
_RESOURCE_TYPES = {2: "TOPIC", 3: "GROUP", 4: "CLUSTER", 5: "TRANSACTIONAL_ID", 6: "DELEGATION_TOKEN", 7: "USER"}


def _refuse_credentials(ask: GatedRequest, code: ErrorCode) -> Awaitable[Response]:
    users = dict.fromkeys(each.name for each in (*ask.entity.deletions, *ask.entity.upsertions))
    return ask.answer(results=tuple(ask.refused("results", user, code) for user in users))


@of_entities
def created_acls(request: CreateAclsRequest, response: CreateAclsResponse) -> Iterator[Change]:
    for acl, result in zip(request.creations, response.results, strict=True):
        kind = _RESOURCE_TYPES.get(acl.resource_type, acl.resource_type)
        yield Change(f"{kind}:{acl.resource_name}", result.error_code, _acl(acl, acl.resource_pattern_type))


@of_entities
def deleted_acls(request: DeleteAclsRequest, response: DeleteAclsResponse) -> Iterator[Change]:
    for wanted, result in zip(request.filters, response.filter_results, strict=True):
        if result.error_code != ErrorCode.none:
            name = "*" if wanted.resource_name_filter is None else wanted.resource_name_filter
            yield Change(f"{_RESOURCE_TYPES.get(wanted.resource_type_filter, 'ANY')}:{name}", result.error_code)
        for acl in result.matching_acls:
            kind = _RESOURCE_TYPES.get(acl.resource_type, acl.resource_type)
            yield Change(f"{kind}:{acl.resource_name}", acl.error_code, _acl(acl, acl.pattern_type))


def _acl(acl: AclCreation | DeleteAclsMatchingAcl, pattern_type: int) -> str:
    return (
        f"pattern_type {pattern_type} principal {acl.principal} host {acl.host} operation {acl.operation}"
        f" permission_type {acl.permission_type}"
    )


@of_entities
def created_token(request: CreateDelegationTokenRequest, response: CreateDelegationTokenResponse) -> Iterator[Change]:
    if response.error_code:
        yield Change("DELEGATION_TOKEN:", response.error_code)
    else:
        owner = f"owner {response.principal_type}:{response.principal_name}"
        yield Change(f"DELEGATION_TOKEN:{response.token_id}", response.error_code, owner)


@of_entities
def altered_token(request: RenewDelegationTokenRequest, response: RenewDelegationTokenResponse) -> Iterator[Change]:
    """The request names it by its HMAC, which is a secret."""
    yield Change("DELEGATION_TOKEN:", response.error_code)


@of_entities
def quotas(request: AlterClientQuotasRequest, response: AlterClientQuotasResponse) -> Iterator[Change]:
    for asked, entry in zip(request.entries, response.entries, strict=True):
        entity = " ".join(f"{part.entity_type}={part.entity_name or '<default>'}" for part in entry.entity)
        what = " ".join(f"{op.key}={'<removed>' if op.remove else op.value}" for op in asked.ops)
        yield Change(f"CLIENT_QUOTA:{entity}", entry.error_code, what)


@of_entities
def users(request: AlterUserScramCredentialsRequest, response: AlterUserScramCredentialsResponse) -> Iterator[Change]:
    for result in response.results:
        deleted = [f"deleted mechanism {d.mechanism}" for d in request.deletions if d.name == result.user]
        changed = [f"set mechanism {u.mechanism}" for u in request.upsertions if u.name == result.user]
        yield Change(f"USER:{result.user}", result.error_code, " ".join(deleted + changed))


ACCESS_ROWS: dict[int, ApiRow[AccessParts]] = {
    ApiKey.DESCRIBE_ACLS: ApiRow(lambda of: DescribeAcls(of.change.cluster), DESCRIBE_CLUSTER),
    ApiKey.CREATE_ACLS: ApiRow(
        lambda of: CreateAcls(of.change),
        whole(AclOperation.ALTER, _CLUSTER, None, mirrored("creations", "results")),
        created_acls,
    ),
    ApiKey.DELETE_ACLS: ApiRow(
        lambda of: DeleteAcls(of.change),
        whole(AclOperation.ALTER, _CLUSTER, None, mirrored("filters", "filter_results")),
        deleted_acls,
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: ApiRow(
        lambda of: of.tokens.create,
        Rule(
            None,
            (
                Check(
                    AclOperation.CREATE_TOKENS,
                    AclResource.USER,
                    FAILED[AclResource.USER],
                    "a token for another principal",
                ),
            ),
        ),
        created_token,
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: ApiRow(lambda of: of.tokens.renew, _OWN_TOKENS, altered_token),
    ApiKey.EXPIRE_DELEGATION_TOKEN: ApiRow(lambda of: of.tokens.expire, _OWN_TOKENS, altered_token),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ApiRow(
        lambda of: of.tokens.describe,
        Rule(
            None,
            (
                Check(
                    AclOperation.DESCRIBE,
                    AclResource.DELEGATION_TOKEN,
                    None,
                    "each token that is not the client's own",
                ),
                Check(AclOperation.DESCRIBE_TOKENS, AclResource.USER, None, "instead: all tokens of an owner"),
            ),
        ),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ApiRow(
        lambda of: DescribeClientQuotas(of.change.cluster), whole(AclOperation.DESCRIBE_CONFIGS, _CLUSTER)
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: ApiRow(
        lambda of: AlterClientQuotas(of.change),
        whole(AclOperation.ALTER_CONFIGS, _CLUSTER, None, mirrored("entries", "entries")),
        quotas,
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ApiRow(
        lambda of: DescribeUserScramCredentials(of.change.cluster), DESCRIBE_CLUSTER
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ApiRow(
        lambda of: AlterUserScramCredentials(of.change, of.sealed_keys),
        whole(AclOperation.ALTER, _CLUSTER, None, _refuse_credentials),
        users,
    ),
}
