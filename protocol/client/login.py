"""TLS and SASL of the tools' connections, by the names of Kafka's clients and of librdkafka.

Place: under transport.py, after a connection is made and before its first request.
Invariant: a password is sent only by PLAIN, which asks for encryption; SCRAM also checks that the server knows it.
Certificates and keys are PEM, in files (`*.location`) or as texts, which links have (compactor/links/). A key that is a
text is in a file of this process alone while OpenSSL reads it, and nowhere after that.
Source: RFC 5802; KIP-43, KIP-152; KIP-651 (PEM texts).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import socket
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.config.errors import ConfigError
from headrace.storage.errors import InvalidError

SETTINGS = (
    "security.protocol",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.ca.location",
    "ssl.truststore.type",
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.type",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "sasl.mechanism",
    "sasl.jaas.config",
    "sasl.username",
    "sasl.password",
)
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_PEM = re.compile(r"-----BEGIN ([A-Z ]+)-----(.*?)-----END \1-----", re.DOTALL)
_PEM_LINE = 64
_OPTION = re.compile(r'(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
Send = Callable[[bytes], bytes]
"""One message of the mechanism; the server's answer."""


@dataclass(frozen=True, slots=True)
class Login:
    """How connections are secured. The default: not at all."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = ""
    trusted: str = ""
    key: str = ""
    key_password: str | None = None
    checks_name: bool = True
    trusted_pem: str = ""
    key_pem: str = ""
    """A client's key with its certificates."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Login:
        """Read the settings of a client. ConfigError names what is missing or unknown."""
        protocol = given.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise ConfigError(f"security.protocol: not one of {', '.join(PROTOCOLS)}: {protocol}")
        for kind in ("ssl.truststore.type", "ssl.keystore.type"):
            if given.get(kind, "PEM").upper() != "PEM":
                raise ConfigError(f"{kind}: only PEM files are supported")
        options = dict(_OPTION.findall(given.get("sasl.jaas.config", "")))
        found = cls(
            protocol,
            given.get("sasl.mechanism", ""),
            given.get("sasl.username", options.get("username", "")),
            given.get("sasl.password", options.get("password", "")),
            given.get("ssl.truststore.location", given.get("ssl.ca.location", "")),
            given.get("ssl.keystore.location", ""),
            given.get("ssl.key.password"),
            given.get("ssl.endpoint.identification.algorithm", "https") == "https",
            pem_lines(given.get("ssl.truststore.certificates", "")),
            "".join(pem_lines(given.get(f"ssl.keystore.{part}", "")) for part in ("key", "certificate.chain")),
        )
        if found.uses_sasl and found.mechanism not in ("PLAIN", *DIGESTS):
            raise ConfigError(f"sasl.mechanism: not one of PLAIN, {', '.join(DIGESTS)}: {found.mechanism or 'unset'}")
        if found.uses_sasl and not (found.username and found.password):
            raise ConfigError("set sasl.jaas.config with username and password, or sasl.username and sasl.password")
        return found

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    @property
    def encrypts(self) -> bool:
        return self.protocol.endswith("SSL")

    def encrypt(self, connection: socket.socket, host: str) -> socket.socket:
        """The connection, encrypted if the protocol says so. OSError if the handshake fails; ConfigError for a file
        that cannot be used."""
        if not self.encrypts:
            return connection
        try:
            context = ssl.create_default_context(cafile=self.trusted or None, cadata=self.trusted_pem or None)
            if self.key:
                context.load_cert_chain(self.key, password=self.key_password or "")
            elif self.key_pem:
                with tempfile.NamedTemporaryFile("w") as file:  # readable by this user alone
                    file.write(self.key_pem)
                    file.flush()
                    context.load_cert_chain(file.name, password=self.key_password or "")
        except (OSError, ValueError) as error:
            raise ConfigError(f"ssl.truststore.*, ssl.keystore.*: not PEM: {error}") from error
        context.check_hostname = self.checks_name
        return context.wrap_socket(connection, server_hostname=host)

    def authenticate(self, send: Send) -> None:
        """The messages of the mechanism. InvalidError if the server does not know the password."""
        if self.mechanism == "PLAIN":
            send(f"\0{self.username}\0{self.password}".encode())
        else:
            self._scram(send, DIGESTS[self.mechanism])

    def _scram(self, send: Send, digest: str) -> None:
        name = self.username.replace("=", "=3D").replace(",", "=2C")
        nonce = secrets.token_hex(16)
        bare = f"n={name},r={nonce}"
        first = send(f"n,,{bare}".encode()).decode()
        parts = dict(part.partition("=")[::2] for part in first.split(","))
        if not parts.get("r", "").startswith(nonce) or not {"s", "i"} <= parts.keys():
            raise InvalidError("authentication: the server's message does not fit")
        salt, iterations = base64.b64decode(parts["s"]), int(parts["i"])
        salted = hashlib.pbkdf2_hmac(digest, self.password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", digest)
        without_proof = f"c=biws,r={parts['r']}"
        signed = f"{bare},{first},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        final = send(f"{without_proof},p={base64.b64encode(proof).decode()}".encode())
        expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
        if not hmac.compare_digest(final, b"v=" + base64.b64encode(expected)):
            raise InvalidError("authentication: the server does not know the password")


def pem_lines(text: str) -> str:
    """PEM as OpenSSL reads it: what Kafka's clients accept on one line, too. Other texts as they are."""

    def lines(part: re.Match[str]) -> str:
        kind, body = part.groups()
        if ":" in body:  # headers of an encrypted key: their lines matter
            return f"{part[0]}\n"
        data = "".join(body.split())
        folded = "\n".join(data[first : first + _PEM_LINE] for first in range(0, len(data), _PEM_LINE))
        return f"-----BEGIN {kind}-----\n{folded}\n-----END {kind}-----\n"

    return "".join(lines(part) for part in _PEM.finditer(text)) or text


PLAINTEXT = Login()
