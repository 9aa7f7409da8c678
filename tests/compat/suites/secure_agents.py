"""The agents of a suite: one listener for each protocol, certificates and users, for its tests of TLS, SASL and ACLs.

Place: started by runner.py; `headrace dev` has listeners without protection only.
Invariant: leaving the context ends all processes that it started. ACLs are enforced where one exists for a resource, as
in the suites' own clusters; the users are the suite's, and not secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from headrace.config.free_ports import free_ports
from headrace.config.settings import STANDARD_AUTHORIZER
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.installation import remove_data_dir
from headrace.metastore.postgres.migrate import migrate
from tests.agent.access.certificates import Authority
from tests.agent_process import AgentUnderTest, format_storage
from tests.compat.suites.catalog import PROTOCOLS, Suite, User

KEY_PASSWORD = "abcdefgh"
"""Key password of the clients' key: aiokafka's tests know it."""
AUTHORITY_FILES = ("ca.crt", "ca-cert")
CLIENT_FILES = ("client.crt", "client.key", "cl_client.pem", "cl_client.key")
"""Names in aiokafka's tests, and in kafka-python's; both certificate and key are in each."""
_MECHANISMS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


@dataclass(frozen=True)
class SecureAgents:
    """`addresses`: of each agent, by protocol. `certificates`: a folder with AUTHORITY_FILES and
    CLIENT_FILES."""

    addresses: list[dict[str, str]]
    certificates: Path

    def bootstrap(self, protocol: str = "PLAINTEXT") -> str:
        """Every agent, as clients take it."""
        return ",".join(agent[protocol] for agent in self.addresses)


@contextmanager
def secure_agents(suite: Suite, settings: Mapping[str, object], folder: Path) -> Iterator[SecureAgents]:
    """Ready for clients, which can log in as the suite's users."""
    (folder / "bucket").mkdir()
    certificates = folder / "certificates"
    certificates.mkdir()
    authority = Authority(certificates)
    _for_clients(authority, certificates)
    with ExitStack() as stack:
        stack.callback(remove_data_dir, folder / "postgres")
        url = stack.enter_context(EmbeddedPostgres(folder / "postgres", fsync=False))
        migrate(url)
        common = {
            "process.roles": "broker,controller,compactor",
            "metastore.url": url,
            "bucket": (folder / "bucket").as_uri(),
            "log.level": "error",
            "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in PROTOCOLS),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "allow.everyone.if.no.acl.found": "true",
            "ssl.keystore.location": str(authority.issue("agent")),
            "ssl.truststore.location": str(authority.path),
            **settings,
        }
        format_storage(common)
        addresses = []
        for number, ports in enumerate(suite.ports):
            found = dict(zip(PROTOCOLS, (f"127.0.0.1:{port}" for port in _chosen(ports)), strict=True))
            listeners = ",".join(f"{name}://{address}" for name, address in found.items())
            own = {"listeners": listeners, "advertised.listeners": listeners, "node.id": number}
            stack.enter_context(AgentUnderTest({**common, **own}))
            addresses.append(found)
        for user in suite.users:
            make_user(addresses[0]["PLAINTEXT"], user)
        yield SecureAgents(addresses, certificates)


def _chosen(ports: tuple[int, ...]) -> list[int]:
    free = iter(free_ports(len(ports)))
    return [port or next(free) for port in ports]


def _for_clients(authority: Authority, folder: Path) -> None:
    """Write what the tests of aiokafka and kafka-python read: the authority, and a client's certificate and key."""
    pem = authority.issue("client", "client.both", KEY_PASSWORD).read_bytes()
    for name in AUTHORITY_FILES:
        (folder / name).write_bytes(authority.path.read_bytes())
    for name in CLIENT_FILES:
        (folder / name).write_bytes(pem)


def make_user(address: str, user: User) -> None:
    """Create a SCRAM credential."""
    info = ScramCredentialInfo(_MECHANISMS[user.mechanism], 4096)
    admin = AdminClient({"bootstrap.servers": address})
    changed = admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(user.name, info, user.password.encode())]
    )
    changed[user.name].result(60)
