"""Replaces the Docker cluster of aiokafka's own tests: their fixtures return a running Headrace.

Place: loaded with `-p` into aiokafka's pytest; its code is not changed.
Invariant: each port is that of the agent's listener with this protocol.
"""

from __future__ import annotations

import os
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

_SECONDS = 60
_RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
}
_PERMISSIONS = {"allow_principal": AclPermissionType.ALLOW, "deny_principal": AclPermissionType.DENY}


class _Acls:
    """What aiokafka's ACLManager does by kafka-acls.sh in its container; parameters are the options of that tool."""

    def __init__(self) -> None:
        self._admin = AdminClient({"bootstrap.servers": os.environ["HEADRACE_BOOTSTRAP"]})
        self._active: list[dict[str, Any]] = []

    def list_acl(self, principal: str | None = None) -> list[AclBinding]:
        anything = (ResourceType.ANY, None, ResourcePatternType.ANY)
        who = f"User:{principal}" if principal else None
        wanted = AclBindingFilter(*anything, who, None, AclOperation.ANY, AclPermissionType.ANY)
        found: list[AclBinding] = self._admin.describe_acls(wanted).result(_SECONDS)
        return found

    def add_acl(self, **acl: Any) -> None:
        for future in self._admin.create_acls([AclBinding(*_described(acl))]).values():
            future.result(_SECONDS)
        self._active.append(acl)

    def remove_acl(self, **acl: Any) -> None:
        for future in self._admin.delete_acls([AclBindingFilter(*_described(acl))]).values():
            future.result(_SECONDS)
        self._active.remove(acl)

    def cleanup(self) -> None:
        for acl in list(self._active):
            self.remove_acl(**acl)


class _Configs:
    """What aiokafka's KafkaConfig does by kafka-configs.sh in its container."""

    def add_scram_user(self, username: str, password: str) -> None:
        admin = AdminClient({"bootstrap.servers": os.environ["HEADRACE_BOOTSTRAP"]})
        changes = [
            UserScramCredentialUpsertion(username, ScramCredentialInfo(mechanism, 4096), password.encode())
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for future in admin.alter_user_scram_credentials(changes).values():
            future.result(_SECONDS)


def _described(acl: dict[str, Any]) -> tuple[Any, ...]:
    kind, name = next(
        ((_RESOURCES[key], acl[key]) for key in _RESOURCES if key in acl), (ResourceType.BROKER, "kafka-cluster")
    )
    permission, who = next((_PERMISSIONS[key], acl[key]) for key in _PERMISSIONS if key in acl)
    operation = AclOperation[acl["operation"].upper()]
    return kind, name, ResourcePatternType.LITERAL, f"User:{who}", "*", operation, permission


def _port(name: str) -> int:
    return int(os.environ[name].rpartition(":")[2])


def _server() -> SimpleNamespace:
    bootstrap = os.environ["HEADRACE_BOOTSTRAP"]
    host, port = bootstrap.rsplit(":", 1)
    return SimpleNamespace(
        host=host,
        port=int(port),
        ssl_port=_port("HEADRACE_SSL"),
        sasl_plain_port=_port("HEADRACE_SASL_PLAINTEXT"),
        sasl_ssl_port=_port("HEADRACE_SASL_SSL"),
        container=None,
        hosts=[bootstrap],
    )


_VALUES = {
    "docker": lambda: None,
    "kerberos_utils": lambda: None,
    "acl_manager": _Acls,
    "kafka_config": _Configs,
    "ssl_folder": lambda: pathlib.Path(os.environ["HEADRACE_CERTIFICATES"]),
    "kafka_server": _server,
}


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> Any:
    """The value instead of the fixture's own, for those that would start a container."""
    make = _VALUES.get(fixturedef.argname)
    if make is None:
        return None
    value = make()
    fixturedef.cached_result = (value, fixturedef.cache_key(request), None)
    return value if value is not None else SimpleNamespace()
