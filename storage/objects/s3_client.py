"""How we talk to S3: addresses, time-outs, and the settings that make a request cheap.

Place: under S3Store; aioboto3 does the signing and the parsing.
Invariant: one put or delete is one request on the wire. Botocore's retries are off: retrying is a
decorator's, where it is paced and counted. What is left is harmless: aiohttp repeats a GET or HEAD once
when its connection broke, and botocore sends it on when the bucket lies in another region.
If the process dies here nothing is lost: connections close.

Cost (load/bench_store.py prints it): as aioboto3 comes, it signs a PUT's body with SHA-256 over http, and
takes its CRC32 over both. `payload_signing_enabled=False` ends the first; that S3Store sends a CRC32C of
its own ends the second, over http and https alike, for a fraction of the price (it is done in hardware),
and S3 checks it before it answers. Ranges are not checked on arrival: every batch carries its own CRC.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aioboto3
from aiobotocore.config import AioConfig
from botocore.handlers import add_expect_header

from headrace.storage.errors import InvalidError
from headrace.storage.objects.keys import check_key

CONNECT_TIMEOUT_S_MAX = 3.0
"""A connection that is not up by then is tried elsewhere; requests have their own, longer limit."""

USER_AGENT = "headrace"
"""Names us in the bucket's access logs; botocore would compose its own for every request, at 15 % of its cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Where the objects lie. `endpoint`, `region` None: AWS and its environment. InvalidError for nonsense."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False
    max_connections: int = 64
    request_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if self.prefix:
            check_key(self.prefix)
        if self.endpoint is not None:
            parts = urlsplit(self.endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise InvalidError(f"bad s3.endpoint: {self.endpoint!r} (expected http://host:port or https://host)")


def new_client(options: S3Options) -> AbstractAsyncContextManager[Any]:
    """An aioboto3 S3 client, connected lazily; credentials come from the standard AWS chain."""
    client: AbstractAsyncContextManager[Any] = aioboto3.Session().client(
        "s3",
        endpoint_url=options.endpoint,
        region_name=options.region,
        config=AioConfig(
            connect_timeout=min(CONNECT_TIMEOUT_S_MAX, options.request_timeout_s),
            read_timeout=options.request_timeout_s,
            max_pool_connections=options.max_connections,
            retries={"total_max_attempts": 1},
            user_agent=USER_AGENT,
            response_checksum_validation="when_required",
            s3={
                "addressing_style": "path" if options.path_style else "auto",
                "payload_signing_enabled": False,
            },
        ),
    )
    return client


def send_bodies_at_once(client: Any) -> None:
    """Do not wait for "100 Continue" before a body: that is a round trip per PUT, and some servers never send it."""
    client.meta.events.unregister("before-call.s3", add_expect_header)
