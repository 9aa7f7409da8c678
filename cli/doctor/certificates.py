"""Judges certificates by their dates: of an agent's listener, of Postgres, of the store.

Place: under the areas of `headrace doctor` that have an address with TLS.
Invariant: a certificate is only read: it is not verified here, and nothing is sent but the handshake (to Postgres, its
request for TLS before). Whether it is trusted is said by the check that connects as an agent does.
Source: Postgres' SSLRequest, in "Message Formats" of its protocol.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from datetime import UTC, datetime
from typing import NamedTuple

from cryptography import x509

from headrace.cli.doctor.findings import Area, Finding
from headrace.storage.clock import Clock, within

LOOK_SECONDS = 5.0
DAYS_WARN = 14
DAY_MS = 86_400_000
_SSL_REQUEST = struct.pack(">ii", 8, 80_877_103)
_HOW_TO_RENEW = "renew it; agents read their files again when they change (docs/operate/SECURITY.md)"


class Dates(NamedTuple):
    """The time from when to when a certificate is valid, in milliseconds since the epoch."""

    from_ms: int
    until_ms: int


async def certificate_of(host: str, port: int, clock: Clock, *, is_postgres: bool = False) -> Dates | str | None:
    """Return its dates; the reason if it was not shown; None if the server is Postgres and does without TLS."""
    try:
        return await within(clock, LOOK_SECONDS, asyncio.to_thread(_dates_of, host, port, is_postgres))
    except TimeoutError:
        return f"no answer in {LOOK_SECONDS:g} s"
    except (OSError, ValueError) as error:  # SSLError is an OSError
        return str(error)


def judge_certificate(area: Area, place: str, shown: Dates | str, now_ms: int) -> Finding:
    """`place`: the address, for people."""
    if isinstance(shown, str):
        return area.unknown("certificate", f"{place}: {shown}", "look at its address and its TLS settings")
    days = (shown.until_ms - now_ms) / DAY_MS
    until = datetime.fromtimestamp(shown.until_ms / 1000, UTC).date()
    if days < 0:
        found = f"the certificate of {place} expired {-days:.0f} days ago, on {until}"
        return area.bad("certificate", found, _HOW_TO_RENEW)
    if shown.from_ms > now_ms:
        found = f"the certificate of {place} is valid only in {(shown.from_ms - now_ms) / DAY_MS:.1f} days"
        return area.bad("certificate", found, "set this machine's clock (NTP), or renew it")
    found = f"the certificate of {place} is valid for {days:.0f} days, until {until}"
    return area.warn("certificate", found, _HOW_TO_RENEW) if days < DAYS_WARN else area.ok("certificate", found)


def unverified() -> ssl.SSLContext:
    """Return a context for a connection over which nothing secret is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _dates_of(host: str, port: int, is_postgres: bool) -> Dates | None:
    with socket.create_connection((host, port), LOOK_SECONDS) as connection:
        if is_postgres:
            connection.sendall(_SSL_REQUEST)
            if connection.recv(1) != b"S":
                return None
        with unverified().wrap_socket(connection, server_hostname=host) as secure:
            shown = x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"")
    return Dates(_ms(shown.not_valid_before_utc), _ms(shown.not_valid_after_utc))


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)
