"""SASL as clients before Kafka 1.0 do it: librdkafka that takes the brokers for 0.10 sends tokens without headers."""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from headrace.config.free_ports import free_ports
from tests.agent_process import SECONDS_MAX, AgentUnderTest

OLD = {"api.version.request": False, "broker.version.fallback": "0.10.0.0", "log_level": 0}


@pytest.mark.requirement("C13.2")
def test_librdkafka_without_sasl_authenticate(agent_settings: dict[str, object]) -> None:
    client, admin = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = agent_settings | {
        "listeners": f"CLIENT://{client},ADMIN://{admin}",
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "ADMIN",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    }
    with AgentUnderTest(settings):
        change = UserScramCredentialUpsertion("orders", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"pw")
        operator = AdminClient({"bootstrap.servers": admin})
        for changed in operator.alter_user_scram_credentials([change]).values():
            changed.result(SECONDS_MAX)
        for mechanism in ("PLAIN", "SCRAM-SHA-256"):
            own = {"bootstrap.servers": client, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
            login = own | OLD | {"sasl.username": "orders", "sasl.password": "pw"}
            assert confluent_kafka.Producer(login).list_topics(timeout=SECONDS_MAX).brokers, mechanism
            errors: list[confluent_kafka.KafkaError] = []
            refused = confluent_kafka.Producer(login | {"sasl.password": "no", "error_cb": errors.append})
            while not errors:
                refused.poll(0.1)
