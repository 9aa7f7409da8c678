"""A certificate authority for tests: keys and certificates in PEM files, made in memory in milliseconds."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)
_numbers = itertools.count(1_000)


class Authority:
    """Signs certificates of servers and clients. Its own is in `path`."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._sign(self._name, self._key, is_authority=True)
        self.path = directory / f"{name.replace(' ', '-')}.pem"
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, common_name: str, file: str = "", password: str | None = None, **subject: str) -> Path:
        """Key and certificate in one PEM file. `subject`: more parts of the name, before the common name."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(getattr(NameOID, part), value) for part, value in subject.items()]
        name = x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        certificate = self._sign(name, key, is_authority=False)
        path = self._directory / (file or f"{common_name}-{next(_numbers)}.pem")
        encryption = (
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        )
        pem = serialization.Encoding.PEM
        key_bytes = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption)
        path.write_bytes(key_bytes + certificate.public_bytes(pem))
        return path

    def _sign(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(next(_numbers))
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if is_authority:
            usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        else:
            builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        return builder.sign(self._key, hashes.SHA256())
