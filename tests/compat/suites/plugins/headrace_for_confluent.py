"""Replaces the Kafka with SASL that confluent-kafka-python's own tests start: their fixture returns running agents.

Place: loaded with `-p` into its pytest; its code is not changed.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

USER = "sasl_user"


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> Any:
    """The suite's own fixture for a cluster that is there, with a login."""
    if fixturedef.argname != "sasl_cluster":
        return None
    from tests.integration.cluster_fixture import ByoFixture

    value = ByoFixture(
        {
            "bootstrap.servers": os.environ["HEADRACE_SASL_PLAINTEXT"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": USER,
        }
    )
    fixturedef.cached_result = (value, fixturedef.cache_key(request), None)
    return value
