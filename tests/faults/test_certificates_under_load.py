"""PEM files that are replaced while clients write and read over TLS: no error, no lost record, new connections see the
new certificate.

Each agent's file is replaced by another key and certificate of the same authority, and then by those of a second one,
which clients and agents trust, too.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from cryptography import x509

from tests import compat
from tests.agent.access.certificates import Authority
from tests.agent_process import SECONDS_MAX
from tests.faults.secure_cluster import SecureCluster, secure_cluster
from tests.faults.steady_load import PARTITIONS, Load
from tests.java_program import java_command
from tests.tools import JAVA_LIBRARIES
from tests.waiting import until

RECORDS = 40
"""So many of each producer between two replacements."""


class Renewal:
    """A cluster with TLS alone for clients, and two authorities that all trust."""

    def __init__(self, cluster: SecureCluster, second: Authority, trusted: Path) -> None:
        self.cluster, self.trusted = cluster, str(trusted)
        first = cluster.authority
        self._steps = (first, first, second, second, first)
        self._context = ssl.create_default_context(cafile=self.trusted)

    async def steps(self) -> AsyncIterator[None]:
        """Yield after each step: in it, all agents' files have been replaced, and new connections show them."""
        for authority in self._steps:
            wanted: dict[str, int] = {}
            for number, keystore in enumerate(self.cluster.keystores):
                issued = authority.issue("agent")
                serial = x509.load_pem_x509_certificate(issued.read_bytes()).serial_number
                wanted |= {self.cluster.clients[number]: serial, self.cluster.links[number]: serial}
                os.replace(issued, keystore)
            await asyncio.gather(*(self._until_shown(address, serial) for address, serial in wanted.items()))
            yield

    async def _until_shown(self, address: str, serial: int) -> None:
        await asyncio.to_thread(until, lambda: self._serial(address) == serial)

    def _serial(self, address: str) -> int:
        """Return the serial of the certificate that a new connection gets."""
        host, _, port = address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), SECONDS_MAX) as plain,
            self._context.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            shown = encrypted.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number

    def client(self) -> dict[str, str]:
        """Settings of librdkafka."""
        return {
            "bootstrap.servers": ",".join(self.cluster.clients),
            "security.protocol": "SSL",
            "ssl.ca.location": self.trusted,
        }


@pytest.fixture
def renewal(tmp_path: Path, agent_settings: dict[str, object]) -> Iterator[Renewal]:
    first, second = Authority(tmp_path), Authority(tmp_path, "second authority")
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(first.path.read_text() + second.path.read_text())
    more = {
        "listener.security.protocol.map": "CLIENT:SSL,AGENTS:SSL,ADMIN:PLAINTEXT",
        "ssl.truststore.location": str(trusted),
    }
    with secure_cluster(tmp_path, agent_settings, 2, more, first) as cluster:
        cluster.topic("renewed", PARTITIONS)
        cluster.topic("renewed-new", 1)
        yield Renewal(cluster, second, trusted)


@pytest.mark.slow
@pytest.mark.requirement("C13.2", "X2")
async def test_librdkafka_and_aiokafka_go_on_while_certificates_are_replaced(renewal: Renewal) -> None:
    load = Load(",".join(renewal.cluster.clients), "renewed", renewal.trusted)
    async with load:
        await load.until_acknowledged(RECORDS)
        async for _ in renewal.steps():
            await asyncio.to_thread(_write_one, renewal)
            await load.until_acknowledged(RECORDS)
    load.assert_nothing_went_wrong()


def _write_one(renewal: Renewal) -> None:
    """Write a record with a new client."""
    errors: list[object] = []
    producer = confluent_kafka.Producer(renewal.client() | {"error_cb": errors.append})
    producer.produce("renewed-new", b"value", on_delivery=lambda error, _: error and errors.append(error))
    assert producer.flush(SECONDS_MAX) == 0
    assert errors == []


@pytest.mark.needs("kafka-clients")
@pytest.mark.slow
@pytest.mark.requirement("C13.2", "X2")
async def test_kafkas_own_client_goes_on_while_certificates_are_replaced(renewal: Renewal, tmp_path: Path) -> None:
    settings = tmp_path / "java.properties"
    settings.write_text(
        f"bootstrap.servers={','.join(renewal.cluster.clients)}\nsecurity.protocol=SSL\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={renewal.trusted}\n"
    )
    source = Path(compat.__file__).with_name("ProducerAndConsumer.java")
    process = await asyncio.create_subprocess_exec(
        *java_command(source, f"{JAVA_LIBRARIES}/*"), str(settings), "renewed",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"started\n"
    async for _ in renewal.steps():
        process.stdin.write(b"\n")
        assert await process.stdout.readline() == b"written\n"
    process.stdin.close()
    said = (await process.stdout.readline()).decode()
    assert await process.wait() == 0
    found = re.fullmatch(r"sent (\d+) read (\d+) in order true errors \[\]\n", said)
    assert found is not None, said
    assert int(found[1]) == int(found[2]) > RECORDS
