"""A small client of the Kubernetes API: JSON objects, and watches that continue after an interruption.

Place: used by all parts that this test adds to the control plane.
Invariant: a watch yields each object's last state at least once; an object that was deleted during an interruption is
yielded as deleted after the next list.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

Json = dict[str, Any]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
ADDED, DELETED = "ADDED", "DELETED"
PAUSE_S = 0.5


class ApiError(Exception):
    """The server refused a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status


class ApiClient:
    """Acts as an administrator of the cluster at `url`."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"},
            connector=aiohttp.TCPConnector(ssl=False, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        )

    async def close(self) -> None:
        """End its connections."""
        await self._session.close()

    async def get(self, path: str) -> Json:
        """ApiError 404 if it is absent."""
        return await self._call("GET", path)

    async def find(self, path: str) -> Json | None:
        """Return None if it is absent."""
        try:
            return await self._call("GET", path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    async def create(self, path: str, body: Json) -> Json:
        """The object as stored."""
        return await self._call("POST", path, body)

    async def patch(self, path: str, body: Any, kind: str = MERGE) -> Json:
        """The object after it."""
        return await self._call("PATCH", path, body, kind)

    async def delete(self, path: str, body: Json | None = None) -> None:
        """An absent object is fine."""
        try:
            await self._call("DELETE", path, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def watch(self, path: str, selector: str = "") -> AsyncIterator[tuple[str, Json]]:
        """(ADDED or DELETED, object), without end. `selector`: `fieldSelector=...`."""
        known: dict[str, Json] = {}
        while True:
            try:
                listed = await self.get(f"{path}?{selector}")
                current = {item["metadata"]["uid"]: item for item in listed["items"]}
                for uid in known.keys() - current.keys():
                    yield DELETED, known.pop(uid)
                for uid, item in current.items():
                    known[uid] = item
                    yield ADDED, item
                async for kind, item in self._follow(path, selector, listed["metadata"]["resourceVersion"]):
                    if kind == DELETED:
                        known.pop(item["metadata"]["uid"], None)
                    else:
                        known[item["metadata"]["uid"]] = item
                    yield kind, item
            except (aiohttp.ClientError, ApiError, ConnectionError, TimeoutError):
                await asyncio.sleep(PAUSE_S)

    async def _follow(self, path: str, selector: str, version: str) -> AsyncIterator[tuple[str, Json]]:
        query = f"watch=1&resourceVersion={version}&{selector}"
        async with self._session.get(f"{self._url}{path}?{query}") as response:
            buffer = b""
            async for chunk in response.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return  # too old: list again
                    yield (DELETED if event["type"] == DELETED else ADDED), event["object"]

    async def _call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Json:
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            method, self._url + path, data=data, headers={"Content-Type": kind}, timeout=aiohttp.ClientTimeout(total=30)
        ) as response:
            text = await response.text()
            if response.status >= 400:
                raise ApiError(response.status, text[:500])
            found: Json = json.loads(text)
            return found
