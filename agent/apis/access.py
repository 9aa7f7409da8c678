"""The rows of the APIs about access: ACLs, tokens, quotas and users.

Place: part of agent/serve/handlers.py's table, on every agent; Kafka's brokers forward changing requests to the
controller instead.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from headrace.agent.access import audited_changes
from headrace.agent.access.admin.acls import CreateAcls, DeleteAcls, DescribeAcls
from headrace.agent.access.admin.client_quotas import AlterClientQuotas, DescribeClientQuotas
from headrace.agent.access.admin.delegation_tokens import DelegationTokens
from headrace.agent.access.admin.scram_credentials import AlterUserScramCredentials, DescribeUserScramCredentials
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.apis import cluster
from headrace.agent.apis.api_row import ApiRow
from headrace.agent.cluster.log_change import LogChange
from headrace.metastore.log.sealed_keys import SealedKeys
from headrace.metastore.log.settings_in_force import SettingsInForce
from headrace.protocol.api_keys import ApiKey


class AccessParts:
    """What these handlers are made of."""

    def __init__(
        self,
        change: LogChange,
        rng: random.Random,
        in_force: SettingsInForce,
        sealed_keys: SealedKeys,
        authorizer: Authorizer | None = None,
        on_limit: Callable[[str], None] = lambda setting: None,
    ) -> None:
        """`rng` draws token ids, which are not secret. `authorizer`: None if ACLs are not enforced. `on_limit`: called
        with the limit that refuses a request."""
        self.change, self.sealed_keys = change, sealed_keys
        self.tokens = DelegationTokens(change, rng, in_force, authorizer, on_limit)


ACCESS_ROWS: dict[int, ApiRow[AccessParts]] = {
    ApiKey.DESCRIBE_ACLS: ApiRow(lambda of: DescribeAcls(of.change.cluster), cluster.DESCRIBE),
    ApiKey.CREATE_ACLS: ApiRow(lambda of: CreateAcls(of.change), cluster.CREATE_ACLS, audited_changes.created_acls),
    ApiKey.DELETE_ACLS: ApiRow(lambda of: DeleteAcls(of.change), cluster.DELETE_ACLS, audited_changes.deleted_acls),
    ApiKey.CREATE_DELEGATION_TOKEN: ApiRow(
        lambda of: of.tokens.create, cluster.CREATE_DELEGATION_TOKEN, audited_changes.created_token
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: ApiRow(
        lambda of: of.tokens.renew, cluster.OWN_TOKENS, audited_changes.altered_token
    ),
    ApiKey.EXPIRE_DELEGATION_TOKEN: ApiRow(
        lambda of: of.tokens.expire, cluster.OWN_TOKENS, audited_changes.altered_token
    ),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ApiRow(lambda of: of.tokens.describe, cluster.DESCRIBE_DELEGATION_TOKEN),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ApiRow(
        lambda of: DescribeClientQuotas(of.change.cluster), cluster.DESCRIBE_CLIENT_QUOTAS
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: ApiRow(
        lambda of: AlterClientQuotas(of.change), cluster.ALTER_CLIENT_QUOTAS, audited_changes.quotas
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ApiRow(
        lambda of: DescribeUserScramCredentials(of.change.cluster), cluster.DESCRIBE
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ApiRow(
        lambda of: AlterUserScramCredentials(of.change, of.sealed_keys),
        cluster.ALTER_USER_SCRAM_CREDENTIALS,
        audited_changes.users,
    ),
}
