"""The handlers of access requests by API key: part of agent/handlers.py's table.

Place: on every agent; Kafka's brokers forward changing requests to the controller instead.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from headrace.agent.admin.access.acls import CreateAcls, DeleteAcls, DescribeAcls
from headrace.agent.admin.access.client_quotas import AlterClientQuotas, DescribeClientQuotas
from headrace.agent.admin.access.delegation_tokens import DelegationTokens
from headrace.agent.admin.access.scram_credentials import AlterUserScramCredentials, DescribeUserScramCredentials
from headrace.agent.admin.log_change import LogChange
from headrace.agent.security.authorization.authorizer import Authorizer
from headrace.metastore.log.sealed_keys import SealedKeys
from headrace.metastore.log.settings_in_force import SettingsInForce
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import RequestHandler


def access_handlers(
    change: LogChange,
    rng: random.Random,
    in_force: SettingsInForce,
    sealed_keys: SealedKeys,
    authorizer: Authorizer | None = None,
    on_limit: Callable[[str], None] = lambda setting: None,
) -> dict[int, RequestHandler]:
    """By API key; `rng` draws token ids, which are not secret. `authorizer`: None if ACLs are not enforced.

    `on_limit`: called with the limit that refuses a request.
    """
    tokens = DelegationTokens(change, rng, in_force, authorizer, on_limit)
    return {
        ApiKey.DESCRIBE_ACLS: DescribeAcls(change.cluster),
        ApiKey.CREATE_ACLS: CreateAcls(change),
        ApiKey.DELETE_ACLS: DeleteAcls(change),
        ApiKey.CREATE_DELEGATION_TOKEN: tokens.create,
        ApiKey.RENEW_DELEGATION_TOKEN: tokens.renew,
        ApiKey.EXPIRE_DELEGATION_TOKEN: tokens.expire,
        ApiKey.DESCRIBE_DELEGATION_TOKEN: tokens.describe,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: DescribeClientQuotas(change.cluster),
        ApiKey.ALTER_CLIENT_QUOTAS: AlterClientQuotas(change),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: DescribeUserScramCredentials(change.cluster),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: AlterUserScramCredentials(change, sealed_keys),
    }
