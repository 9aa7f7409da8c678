"""ACLs, SCRAM credentials, quotas and tokens as four admin clients ask for them, each over two agents."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import confluent_kafka.admin as confluent
import kafka.admin
import pytest
from confluent_kafka import KafkaException

from load.dev_server import DevServer
from tests.compat.clients import TIMEOUT_SECONDS
from tests.java_program import run_java
from tests.tools import JAVA_LIBRARIES, KAFKAJS

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def librdkafka(server: DevServer) -> confluent.AdminClient:
    return confluent.AdminClient({"bootstrap.servers": server.bootstrap})


def _binding(name: str, pattern: confluent.ResourcePatternType, permission: confluent.AclPermissionType) -> object:
    return confluent.AclBinding(
        confluent.ResourceType.TOPIC, name, pattern, "User:rd", "*", confluent.AclOperation.READ, permission
    )


@pytest.mark.requirement("C13.1")
def test_librdkafka_acls(librdkafka: confluent.AdminClient) -> None:
    literal = _binding("rd-orders", confluent.ResourcePatternType.LITERAL, confluent.AclPermissionType.ALLOW)
    prefix = _binding("rd-", confluent.ResourcePatternType.PREFIXED, confluent.AclPermissionType.DENY)
    for created in librdkafka.create_acls([literal, prefix]).values():
        created.result(TIMEOUT_SECONDS)
    wanted = confluent.AclBindingFilter(
        confluent.ResourceType.TOPIC,
        "rd-orders",
        confluent.ResourcePatternType.MATCH,
        "User:rd",
        None,
        confluent.AclOperation.ANY,
        confluent.AclPermissionType.ANY,
    )
    assert set(librdkafka.describe_acls(wanted).result(TIMEOUT_SECONDS)) == {literal, prefix}
    (deleted,) = librdkafka.delete_acls([wanted]).values()
    assert set(deleted.result(TIMEOUT_SECONDS)) == {literal, prefix}
    assert librdkafka.describe_acls(wanted).result(TIMEOUT_SECONDS) == []


@pytest.mark.requirement("C13.1")
def test_librdkafka_scram_credentials(librdkafka: confluent.AdminClient) -> None:
    """It aborts its process on an error for a whole describe request, so the test also checks that it keeps running."""
    info = confluent.ScramCredentialInfo(confluent.ScramMechanism.SCRAM_SHA_256, 4096)
    weak = confluent.ScramCredentialInfo(confluent.ScramMechanism.SCRAM_SHA_512, 100)
    altered = librdkafka.alter_user_scram_credentials(
        [
            confluent.UserScramCredentialUpsertion("rd", info, b"secret"),
            confluent.UserScramCredentialUpsertion("rd-weak", weak, b"secret"),
        ]
    )
    altered["rd"].result(TIMEOUT_SECONDS)
    with pytest.raises(KafkaException, match="UNACCEPTABLE_CREDENTIAL"):
        altered["rd-weak"].result(TIMEOUT_SECONDS)
    described = librdkafka.describe_user_scram_credentials(["rd", "rd-weak"])
    (found,) = described["rd"].result(TIMEOUT_SECONDS).scram_credential_infos
    assert (found.mechanism, found.iterations) == (confluent.ScramMechanism.SCRAM_SHA_256, 4096)
    with pytest.raises(KafkaException, match="RESOURCE_NOT_FOUND"):
        described["rd-weak"].result(TIMEOUT_SECONDS)
    assert "rd" in librdkafka.describe_user_scram_credentials().result(TIMEOUT_SECONDS)
    gone = confluent.UserScramCredentialDeletion("rd", confluent.ScramMechanism.SCRAM_SHA_256)
    librdkafka.alter_user_scram_credentials([gone])["rd"].result(TIMEOUT_SECONDS)
    assert "rd" not in librdkafka.describe_user_scram_credentials().result(TIMEOUT_SECONDS)


@pytest.mark.requirement("C13.1")
def test_kafka_python(server: DevServer) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=server.bootstrap.split(","))
    try:
        pattern = kafka.admin.ResourcePattern(kafka.admin.ResourceType.GROUP, "kpy")
        acl = kafka.admin.ACL(
            "User:kpy", "*", kafka.admin.ACLOperation.READ, kafka.admin.ACLPermissionType.ALLOW, pattern
        )
        assert admin.create_acls([acl])["failed"] == []
        wanted = kafka.admin.ACLFilter(
            "User:kpy", None, kafka.admin.ACLOperation.ANY, kafka.admin.ACLPermissionType.ANY, pattern
        )
        assert admin.describe_acls(wanted)[0] == [acl]
        ((_, deleted, _),) = admin.delete_acls([wanted])
        assert deleted == [acl]
        upsertion = kafka.admin.UserScramCredentialUpsertion("kpy", kafka.admin.ScramMechanism.SCRAM_SHA_512, "secret")
        assert admin.alter_user_scram_credentials([upsertion]) == {"kpy": None}
        described = admin.describe_user_scram_credentials(["kpy"])["kpy"]
        assert (described["error"], len(described["credential_infos"])) == (None, 1)
    finally:
        admin.close()


@pytest.mark.needs("kafkajs")
def test_kafkajs_acls(server: DevServer) -> None:
    done = subprocess.run(
        ["node", str(HERE / "kafkajs_access.cjs"), server.bootstrap],
        env=os.environ | {"KAFKAJS": str(KAFKAJS)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    ((resource,), (deleted,)) = answer["described"], answer["deleted"]
    assert (resource["resourceName"], resource["acls"][0]["principal"]) == ("kafkajs-", "User:js")
    assert (deleted["resourceName"], deleted["errorCode"], answer["left"]) == ("kafkajs-", 0, [])


@pytest.mark.slow
@pytest.mark.needs("kafka-clients")
def test_java(server: DevServer) -> None:
    done = run_java(HERE / "AccessAdmin.java", f"{JAVA_LIBRARIES}/*", server.bootstrap)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    binding = (
        "(pattern=ResourcePattern(resourceType=TOPIC, name=java-, patternType=PREFIXED), "
        "entry=(principal=User:duke, host=*, operation=READ, permissionType=ALLOW))"
    )
    assert lines[:3] == [f"acls [{binding}]", f"deleted acls [{binding}]", "acls []"]
    assert lines[3:5] == ["quotas {ClientQuotaEntity(entries={user=duke})={producer_byte_rate=2048.0}}", "quotas {}"]
    assert "mechanism=SCRAM_SHA_512, iterations=8192" in lines[5]
    assert lines[6:] == [
        "credential ResourceNotFoundException",
        "create token UnsupportedByAuthenticationException",
        "renew token UnsupportedByAuthenticationException",
        "expire token UnsupportedByAuthenticationException",
        "describe tokens UnsupportedByAuthenticationException",
    ]
