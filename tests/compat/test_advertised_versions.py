"""The APIs and versions that Apache Kafka advertises to clients, next to those of an agent.

Place: tests/compat/test_codec.py compares with Kafka's classes in `make test`; this is a broker with its defaults,
which does not advertise what its classes call unstable (InitProducerId 6, for two-phase commit).
"""

from __future__ import annotations

import pytest
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.api_versions.v3.response import ApiVersionsResponse

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_table import WHY_NOT
from headrace.protocol.api_versions import APIS, CONTROLLER_ONLY
from headrace.protocol.client.transport import ask, client_config
from tests.compat.kafka_server import kafka_server

pytestmark = [pytest.mark.needs("kafka"), pytest.mark.slow]


@pytest.fixture(scope="module")
def advertised(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[int, int]]:
    with kafka_server(tmp_path_factory.mktemp("kafka")) as bootstrap:
        asked = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        answer = ask(client_config(bootstrap, None), asked, ApiVersionsResponse)
    return {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}


def test_an_agent_has_every_version_that_kafka_advertises(advertised: dict[int, tuple[int, int]]) -> None:
    served = {api.key: (api.min_version, api.max_version) for api in APIS.values() if api.key not in CONTROLLER_ONLY}
    assert {key: advertised.get(key) for key, own in served.items() if advertised.get(key) != own} == {}


def test_each_key_that_only_kafka_advertises_has_a_reason(advertised: dict[int, tuple[int, int]]) -> None:
    assert advertised.keys() - APIS.keys() <= WHY_NOT.keys()


def test_kafka_does_not_advertise_two_phase_commit(advertised: dict[int, tuple[int, int]]) -> None:
    assert advertised[ApiKey.INIT_PRODUCER_ID] == (0, 5)
