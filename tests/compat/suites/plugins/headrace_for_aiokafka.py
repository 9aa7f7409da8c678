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
    "acl_manager": lambda: None,
    "kafka_config": lambda: None,
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
