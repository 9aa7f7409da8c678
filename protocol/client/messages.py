"""The requests of tools and links, in the versions of each API that they support.

Place: under cluster.py, which negotiates versions and sends. Requests are built from kio's generated classes by the
names of their fields, but for the answer to DescribeTransactions (described_transactions.py).
Invariant: a tool sets every field it knows; fields that a version does not have are left out. The highest supported
version is the last one in which the fields have the same meaning (before topic ids replace names, or one request takes
several groups).
"""

from __future__ import annotations

import functools
from dataclasses import MISSING, fields
from importlib import import_module
from typing import Any

from kio.schema.index import api_key_map

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.described_transactions import DescribedTransactions

VERSIONS: dict[int, tuple[int, int]] = {
    ApiKey.PRODUCE: (3, 12),
    ApiKey.FETCH: (4, 12),
    ApiKey.LIST_OFFSETS: (1, 10),
    ApiKey.METADATA: (4, 12),
    ApiKey.OFFSET_COMMIT: (2, 9),
    ApiKey.OFFSET_FETCH: (2, 7),
    ApiKey.FIND_COORDINATOR: (1, 3),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.API_VERSIONS: (3, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 5),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.INIT_PRODUCER_ID: (0, 4),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.CREATE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.UPDATE_FEATURES: (0, 2),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.WRITE_TXN_MARKERS: (1, 1),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.SHARE_GROUP_DESCRIBE: (1, 1),
    ApiKey.STREAMS_GROUP_DESCRIBE: (0, 0),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (0, 1),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (0, 0),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (0, 0),
}
"""The versions of each API that the tools support: lowest and highest."""
_RESPONSES: dict[int, type[Any]] = {ApiKey.DESCRIBE_TRANSACTIONS: DescribedTransactions}
"""Response classes that replace the generated ones."""


class Message:
    """One API in one version."""

    def __init__(self, api_key: int, version: int) -> None:
        package = api_key_map[api_key]
        self._module = import_module(f"kio.schema.{package}.v{version}.request")
        responses = import_module(f"kio.schema.{package}.v{version}.response")
        camel = "".join(part.capitalize() for part in package.split("_"))
        self._request = f"{camel}Request"
        self.version = version
        self.response_type = _RESPONSES.get(api_key) or getattr(responses, f"{camel}Response")

    def make(self, name: str, /, **values: Any) -> Any:
        """An instance of the request module's class `name`; values that this version does not have are dropped."""
        cls = getattr(self._module, name)
        known = {field.name: field for field in fields(cls)}
        lacking = [n for n, f in known.items() if n not in values and f.default is f.default_factory is MISSING]
        assert not lacking, f"{name} v{self.version} needs {lacking}"
        return cls(**{key: value for key, value in values.items() if key in known})

    def request(self, **values: Any) -> Any:
        """The request itself."""
        return self.make(self._request, **values)


@functools.cache
def message(api_key: int, version: int) -> Message:
    """Loaded once."""
    return Message(api_key, version)
