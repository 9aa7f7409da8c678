"""One request for the key set of OAUTHBEARER's tokens.

Place: under oauthbearer.py, loaded only by an agent that gets its keys over HTTPS.
Invariant: bounded in time and bytes; redirects are not followed.
"""

from __future__ import annotations

import asyncio
import ssl

import aiohttp

FETCH_SECONDS = 10.0
LARGEST_BYTES = 1024 * 1024


async def fetch(url: str) -> bytes:
    """The body at an HTTPS address with a certificate that the authorities of the system (SSL_CERT_FILE) signed.

    OSError, TimeoutError or ValueError if there is none of at most LARGEST_BYTES.
    """
    try:
        return await _fetch(url)
    except aiohttp.ClientError as error:
        raise OSError(str(error)) from error


async def _fetch(url: str) -> bytes:
    context = await asyncio.to_thread(ssl.create_default_context)
    timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
    async with (
        aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
        session.get(url, ssl=context, allow_redirects=False, raise_for_status=True) as response,
    ):
        if response.status != 200:
            raise ValueError(f"status {response.status}")
        body = b""
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > LARGEST_BYTES:
                raise ValueError(f"more than {LARGEST_BYTES} bytes")
        return body
