"""SASL on one connection, message by message: what is served before it, what ends it, what an attacker gains."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import random
import struct
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.access.audit import AuditLog
from headrace.agent.access.listener_security import ListenerSecurity
from headrace.agent.access.sasl import passwords
from headrace.agent.access.sasl.authentication import FAILURES_PER_MINUTE, Authentication
from headrace.agent.access.sasl.exchange import AuthenticationFailed
from headrace.agent.access.sasl.passwords import Credentials, PlainExchange
from headrace.agent.peers.channel import BETWEEN_AGENTS
from headrace.config.listeners import listeners
from headrace.config.load import load
from headrace.metastore.log.delegation_tokens import token_hmac
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import CredentialInfo, DelegationTokenRecord
from headrace.metastore.log.scram_keys import SealedKeys
from headrace.metastore.sealing import Sealing
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.protocol.request import ClientConnection, CloseConnection, Request, Response
from headrace.storage.errors import HeadraceError, UnavailableError
from headrace.storage.repetition import SECONDS
from tests.agent.listener.listener_client import Gate, frame, listening, until
from tests.manual_clock import ManualClock
from tests.patch import Patch

ITERATIONS = 4096
SECRET = "the cluster's secret for tokens"
SEALED_KEYS = SealedKeys(Sealing(base64.b64encode(b"k" * 32).decode()), "cluster")
DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def credential(mechanism: int, password: str, salt: bytes = b"salt") -> CredentialInfo:
    digest = "sha256" if mechanism == 1 else "sha512"
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, ITERATIONS)
    return CredentialInfo(mechanism=mechanism, salt=salt, salted_password=salted, iterations=ITERATIONS)


class ScramClient:
    """The client's side, written from RFC 5802 apart from the product's code."""

    def __init__(self, mechanism: str, user: str, password: str, extension: str = "", *, repeats: str = "") -> None:
        """`repeats`: put before the nonce of the final message, as librdkafka before 2.6.1 does with its own."""
        self.digest, self.password, self.repeats = DIGESTS[mechanism], password.encode(), repeats
        self.bare = f"n={user},r=client-nonce{extension}"

    def first(self) -> bytes:
        return f"n,,{self.bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        parts = dict(part.split("=", 1) for part in server_first.decode().split(","))
        salted = hashlib.pbkdf2_hmac(self.digest, self.password, base64.b64decode(parts["s"]), int(parts["i"]))
        key = hmac.digest(salted, b"Client Key", self.digest)
        without_proof = f"c=biws,r={self.repeats}{parts['r']}"
        signed = f"{self.bare},{server_first.decode()},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(self.digest, key).digest(), signed, self.digest)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self.expected = hmac.digest(hmac.digest(salted, b"Server Key", self.digest), signed, self.digest)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        assert server_final == b"v=" + base64.b64encode(self.expected)


class World:
    """A listener with SASL, and one client's connection."""

    def __init__(self, **own: object) -> None:
        self.clock = ManualClock()
        self.image = MetadataImage(scram_credentials={"alice": (credential(1, "pw"), credential(2, "pw"))})
        flags = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"} | {k.replace("_", "."): str(v) for k, v in own.items()}
        settings = load(flags={"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"} | flags)
        self.security = ListenerSecurity(settings, listeners(settings).serving[0], self.clock)
        self.credentials = Credentials(lambda: self.image, lambda: SECRET, self.clock, b"pepper", SEALED_KEYS)
        self.registry = CollectorRegistry()
        self.audited: list[str] = []
        self.audit = AuditLog(self.clock, self.registry, self.audited.append)
        self.newest: MetadataImage | HeadraceError | None = None
        """At the end of the log; None: as `image`."""
        self.reads = 0
        """Of the log."""
        self.authentication = Authentication(
            {"SASL_PLAINTEXT": self.security},
            self.credentials,
            self.clock,
            random.Random(5),
            self.registry,
            self.audit,
            self._catch_up,
        )
        self.served: list[int] = []
        self._handle = self.authentication.gate(self._serve)
        self.connection = self.connect()

    def connect(self, *, must_authenticate: bool = True) -> ClientConnection:
        self.connection = ClientConnection(1, "127.0.0.1:1", listener="SASL_PLAINTEXT")
        self.connection.must_authenticate = must_authenticate
        return self.connection

    async def _catch_up(self) -> MetadataImage:
        self.reads += 1
        if isinstance(self.newest, HeadraceError):
            raise self.newest
        self.image = self.newest or self.image
        return self.image

    async def _serve(self, request: Request) -> Response:
        self.served.append(request.api_key)
        return Response([])

    def request(self, api_key: int, body: bytes = b"", version: int = 1) -> Request:
        return Request(self.connection, api_key, version, 7, "test", memoryview(body), 0.0)

    async def ask(self, api_key: int) -> None:
        await self._handle(self.request(api_key))

    async def handshake(self, mechanism: str) -> int:
        """The error code. Waits until the metadata log may be read."""
        body = struct.pack(f">h{len(mechanism)}s", len(mechanism), mechanism.encode())
        response = await self.clock.run(self.authentication.handshake(self.request(ApiKey.SASL_HANDSHAKE, body)))
        return int(struct.unpack_from(">h", _body(response))[0])

    async def authenticate(self, message: bytes) -> tuple[int, bytes, int]:
        """Error code, the server's message, lifetime in ms. Waits through the delay of a failure."""
        body = struct.pack(">i", len(message)) + message
        asked = self.authentication.authenticate(self.request(ApiKey.SASL_AUTHENTICATE, body))
        response = _body(await self.clock.run(asked))
        code, size = struct.unpack_from(">hh", response)
        position = 4 + max(0, size)
        (length,) = struct.unpack_from(">i", response, position)
        answer = response[position + 4 : position + 4 + length]
        (lifetime,) = struct.unpack_from(">q", response, position + 4 + length)
        return code, answer, lifetime

    async def scram(
        self, mechanism: str = "SCRAM-SHA-256", user: str = "alice", password: str = "pw", **more: Any
    ) -> int:
        """The error code of a whole exchange."""
        client = ScramClient(mechanism, user, password, **more)
        assert await self.handshake(mechanism) == 0
        code, first, _ = await self.authenticate(client.first())
        assert code == 0, "the first answer tells nothing"
        code, final, self.lifetime_ms = await self.authenticate(client.final(first))
        if code == 0:
            client.verify(final)
        return code


def _body(response: Response) -> bytes:
    assert response.buffers is not None
    return b"".join(response.buffers)[4:]


FAILED, ILLEGAL_STATE, UNSUPPORTED = 58, 34, 33


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.requirement("C13.2", "X2")
@pytest.mark.parametrize("mechanism", list(DIGESTS))
async def test_after_scram_everything_is_served(world: World, mechanism: str) -> None:
    assert await world.scram(mechanism) == 0
    assert world.connection.principal == "User:alice"
    await world.ask(ApiKey.METADATA)
    assert world.served == [ApiKey.METADATA]


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("api_key", sorted(APIS.keys() - {17, 18, 36}))
async def test_before_authentication_no_other_api_is_served(world: World, api_key: int) -> None:
    with pytest.raises(CloseConnection):
        await world.ask(api_key)
    await world.handshake("SCRAM-SHA-256")
    await world.authenticate(ScramClient("SCRAM-SHA-256", "alice", "pw").first())
    with pytest.raises(CloseConnection):
        await world.ask(api_key)
    assert world.served == []
    world.connect(must_authenticate=False)
    await world.ask(api_key)
    assert world.served == [api_key]


async def test_apis_between_agents_check_the_clusters_secret_themselves(world: World) -> None:
    for api_key in BETWEEN_AGENTS:
        assert api_key not in APIS
        await world.ask(api_key)


@pytest.mark.requirement("X2")
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "pw"), ("alice", "")])
async def test_a_failed_authentication_is_the_end_of_a_connection(world: World, user: str, password: str) -> None:
    assert await world.scram("SCRAM-SHA-256", user, password) == FAILED
    assert world.connection.principal is None
    with pytest.raises(CloseConnection):
        await world.authenticate(b"")
    with pytest.raises(CloseConnection):
        await world.ask(ApiKey.METADATA)


@pytest.mark.requirement("X2")
async def test_a_failed_login_names_the_user_once_per_minute(world: World, caplog: pytest.LogCaptureFixture) -> None:
    long = "u" * 8_000
    for user in ("alice", "alice", "nobody", long):
        world.connect()
        assert await world.scram("SCRAM-SHA-256", user, "wrong") == FAILED
    world.connect()
    assert await world.handshake("PLAIN") == 0
    assert (await world.authenticate(b"\0bob\0wrong"))[0] == FAILED
    lines = [record.getMessage() for record in caplog.records if "authentication failed" in record.getMessage()]
    assert [line.partition("user='")[2][:5] for line in lines] == ["alice", "nobod", "uuuuu", "bob' "]
    assert max(map(len, lines)) < 1_000
    assert ['"user":"alice"' in line.replace(" ", "") for line in world.audited] == [True, True, False, False, False]
    assert max(map(len, world.audited)) < 2_000
    world.clock.jump(SECONDS)
    world.connect()
    await world.scram("SCRAM-SHA-256", "alice", "wrong")
    assert "left_out=1" in caplog.records[-1].getMessage()


async def test_names_that_change_with_each_login_get_a_limited_number_of_lines(
    world: World,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in range(2 * FAILURES_PER_MINUTE):
        world.connect()
        assert await world.handshake("PLAIN") == 0
        await world.authenticate(f"\0user-{number}\0".encode())
    assert 0 < caplog.text.count("authentication failed") <= FAILURES_PER_MINUTE * 3


async def test_an_unknown_user_looks_like_a_known_one() -> None:
    """The salt of a name is the same each time, on every agent."""
    firsts = []
    for user in ("nobody", "nobody", "alice"):
        world = World()
        await world.handshake("SCRAM-SHA-256")
        code, first, _ = await world.authenticate(ScramClient("SCRAM-SHA-256", user, "pw").first())
        assert code == 0
        firsts.append(dict(part.split(b"=", 1) for part in first.split(b",")))
    assert firsts[0] == firsts[1]
    assert firsts[0].keys() == firsts[2].keys()
    assert firsts[0][b"i"] == firsts[2][b"i"]


@pytest.mark.requirement("X2")
async def test_a_final_message_that_was_seen_is_of_no_use_again(world: World) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "pw")
    await world.handshake("SCRAM-SHA-256")
    _, first, _ = await world.authenticate(client.first())
    seen = client.final(first)
    assert (await world.authenticate(seen))[0] == 0
    world.connect()
    await world.handshake("SCRAM-SHA-256")
    await world.authenticate(client.first())
    assert (await world.authenticate(seen))[0] == FAILED


@pytest.mark.requirement("X2")
async def test_a_wrong_nonce_is_logged_apart_from_a_wrong_password(caplog: pytest.LogCaptureFixture) -> None:
    """The client learns nothing more: librdkafka 2.0.2 with the right password, and with a wrong one."""
    world = World(connection_failed_authentication_delay_ms=0)
    reasons = {}
    for user, password, repeats in (
        ("alice", "pw", "client-nonce"),
        ("alice", "wrong", ""),
        ("nobody", "pw", "client-nonce"),
        ("nobody", "pw", ""),
    ):
        caplog.clear()
        world.connect()
        world.clock.jump(61)
        assert await world.scram(user=user, password=password, repeats=repeats) == FAILED
        (reasons[user, password, bool(repeats)],) = [line.partition("reason=")[2] for line in caplog.messages]
    assert set(reasons.values()) == {passwords.WRONG_NONCE, "unknown user, or wrong password"}
    assert {key for key, reason in reasons.items() if reason == passwords.WRONG_NONCE} == {
        ("alice", "pw", True),
        ("nobody", "pw", True),
    }


@pytest.mark.parametrize(
    ("bug", "user", "password"),
    [
        ("proof", "alice", "wrong"),
        ("unknown", "nobody", "pw"),
    ],
)
async def test_planted_bugs_in_the_check_let_others_in(
    world: World, bug: str, user: str, password: str, patch: Patch
) -> None:
    """This is what the tests above would miss if the check were not there."""
    if bug == "proof":
        patch.replace(passwords.hmac, "compare_digest", lambda a, b: True)
    else:
        known = world.credentials.user("SCRAM-SHA-256", "alice")
        patch.replace(world.credentials, "user", lambda mechanism, name: known._replace(principal=f"User:{name}"))
    client = ScramClient("SCRAM-SHA-256", user, password)
    await world.handshake("SCRAM-SHA-256")
    _, first, _ = await world.authenticate(client.first())
    assert (await world.authenticate(client.final(first)))[0] == 0


@pytest.mark.parametrize("seed", range(20))
async def test_malformed_messages_fail_and_nothing_else(seed: int) -> None:
    """X7: any bytes."""
    rng = random.Random(seed)
    for mechanism in ("PLAIN", *DIGESTS):
        world = World()
        await world.handshake(mechanism)
        good = b"\0alice\0pw" if mechanism == "PLAIN" else ScramClient(mechanism, "alice", "pw").first()
        damaged = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice(b"\0=,a\xff n")
        code, _, _ = await world.authenticate(bytes(damaged) if seed else b"")
        assert code in (0, FAILED)
        if code == 0 and mechanism != "PLAIN":
            assert world.connection.principal is None


async def test_plain_checks_the_stored_keys() -> None:
    exchange = PlainExchange(World().credentials)
    result = await exchange.step(b"\0alice\0pw")
    assert not isinstance(result, bytes)
    assert result.principal == "User:alice"
    for wrong in (
        b"\0alice\0no",
        b"\0bob\0pw",
        b"bob\0alice\0pw",
        b"alice\0pw",
        b"\0alice\0",
        b"\0alice\0" + b"x" * 2000,
    ):
        with pytest.raises(AuthenticationFailed):
            await exchange.step(wrong)


async def test_steps_out_of_turn(world: World) -> None:
    assert (await world.authenticate(b"x"))[0] == ILLEGAL_STATE
    assert await world.handshake("GSSAPI") == UNSUPPORTED
    assert (await world.authenticate(b"x"))[0] == ILLEGAL_STATE
    world.connect(must_authenticate=False)
    assert await world.handshake("PLAIN") == ILLEGAL_STATE


async def test_a_sasl_client_of_a_listener_without_sasl_leaves_one_line_per_minute(
    world: World,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(3):
        world.connect(must_authenticate=False)
        assert await world.handshake("PLAIN") == ILLEGAL_STATE
    assert caplog.text.count("clients of this listener do not authenticate") == 1
    world.clock.jump(SECONDS)
    assert await world.handshake("PLAIN") == ILLEGAL_STATE
    assert "left_out=2" in caplog.text


@pytest.mark.requirement("C13.2")
async def test_an_authentication_ends_unless_it_is_repeated() -> None:
    world = World(connections_max_reauth_ms=5_000)
    assert await world.scram() == 0
    assert world.lifetime_ms == 5_000
    world.clock.jump(4.9)
    assert await world.scram() == 0, "KIP-368"
    world.clock.jump(4.9)
    await world.ask(ApiKey.METADATA)
    world.clock.jump(0.2)
    with pytest.raises(CloseConnection):
        await world.ask(ApiKey.METADATA)


async def test_neither_principal_nor_mechanism_change_at_re_authentication(world: World) -> None:
    world.image = MetadataImage(scram_credentials=world.image.scram_credentials | {"bob": (credential(1, "pw"),)})
    assert await world.scram() == 0
    assert await world.handshake("SCRAM-SHA-512") == ILLEGAL_STATE
    assert await world.scram(user="bob") == FAILED
    assert world.connection.principal == "User:alice"
    with pytest.raises(CloseConnection):
        await world.ask(ApiKey.METADATA)


@pytest.mark.requirement("X2")
async def test_a_changed_password_ends_what_it_opened(world: World) -> None:
    assert await world.scram() == 0
    world.image = MetadataImage(scram_credentials={"alice": (credential(1, "new"), credential(2, "pw"))})
    with pytest.raises(CloseConnection):
        await world.ask(ApiKey.METADATA)


async def test_a_delegation_token_is_a_password_for_its_time(world: World) -> None:
    now = world.clock.wall_ms()
    token = DelegationTokenRecord(
        owner="User:spark",
        renewers=(),
        issue_timestamp=now,
        max_timestamp=now + 60_000,
        expiration_timestamp=now + 30_000,
        token_id="t-1",
    )
    world.image = MetadataImage(delegation_tokens={"t-1": token})
    password = base64.b64encode(token_hmac(SECRET, "t-1")).decode()
    assert await world.scram(user="t-1", password=password, extension=",tokenauth=true") == 0
    assert world.connection.principal == "User:spark"
    assert world.lifetime_ms == 30_000
    assert world.connection.is_by_token
    world.image = dataclasses.replace(world.image, delegation_tokens={})
    with pytest.raises(CloseConnection):
        await world.ask(ApiKey.METADATA)
    world.connect()
    assert await world.scram(user="t-1", password=password, extension=",tokenauth=true") == FAILED


@pytest.mark.requirement("X2")
async def test_guesses_of_one_connection_wait_for_each_other() -> None:
    """Else a client sends many at once, and only the first failure ends the connection."""
    gate = Gate()
    async with listening(gate.handle, security=World().security) as server:
        client = await server.connect()
        await client.send(*(frame(number, api_key=ApiKey.SASL_AUTHENTICATE) for number in range(3)))
        await until(lambda: gate.started)
        assert gate.started == [0]
        for number in range(3):
            gate.open(number)
            assert (await client.reply())[0] == number
        assert gate.started == [0, 1, 2]


async def test_a_login_knows_what_another_agent_has_just_stored(world: World) -> None:
    world.newest = MetadataImage(scram_credentials={"bob": (credential(1, "pw"),)})
    assert await world.scram(user="bob") == 0
    world = World()
    world.newest = MetadataImage()
    assert await world.scram() == FAILED, "the user was removed"


async def test_clients_log_in_while_the_metastore_does_not_answer(world: World) -> None:
    world.newest = UnavailableError("no connection")
    assert await world.scram() == 0
