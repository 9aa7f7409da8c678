"""Objects in a bucket of Google Cloud Storage.

Place: under the decorators, for gs://bucket/prefix; google_client.py sends.
Invariant: a put that returned is complete in the store. It is one upload, never resumable, of the body with its
CRC32C: a body that is shorter or different is refused (400), and the CRC32C and the length of the answer are compared.
Invariant of conditional puts: ifGenerationMatch=0, which Google decides for the whole object at once.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

import crc32c

from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError, HeadraceError
from headrace.storage.objects.google_client import GoogleClient, GoogleOptions
from headrace.storage.objects.http_requests import Answer, BodyOfParts, check_part, delete_each, range_header
from headrace.storage.objects.store import (
    BucketRules,
    ByteRange,
    Expiration,
    ObjectInfo,
    PageMarkers,
    check_range,
    read_each,
)

PAGE_KEYS = 1000
"""Keys per listing: Google's limit."""
_ENTRY = "name,size,updated,generation"
_DAY_S = 86_400


class GoogleStore:
    """One bucket and prefix. Connects with the first request, on the running loop; one loop per store."""

    tells = "allow storage.buckets.get to the one who runs the doctor"
    """What to do where `rules` does not say all."""

    def __init__(self, options: GoogleOptions, clock: Clock) -> None:
        """`clock` is used for the time of tokens, and `modified_ms` in a put's result."""
        self._clock = clock
        self._client = GoogleClient(options, clock)

    @property
    def prefix(self) -> str:
        """The beginning of all keys in the bucket, without a slash at its end."""
        return self._client.prefix.rstrip("/")

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        view = memoryview(body).cast("B")
        checksum = base64.b64encode(crc32c.crc32c(view).to_bytes(4, "big")).decode()
        said = json.dumps(
            {"name": self._client.name(key), "crc32c": checksum, "contentType": "application/octet-stream"}
        )
        boundary = uuid.uuid5(uuid.NAMESPACE_OID, f"{said}{view.nbytes}").hex
        head = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{said}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        )
        parts: list[bytes | memoryview] = [head.encode(), view, f"\r\n--{boundary}--\r\n".encode()]
        query = {"uploadType": "multipart", "fields": f"{_ENTRY},crc32c"}
        if if_absent:
            query["ifGenerationMatch"] = "0"
        content = BodyOfParts(parts, f"multipart/related; boundary={boundary}")
        answer = await self._client.send("put", key, self._client.uploads, query=query, body=content)
        stored = _object(answer, f"put key={key}")
        if stored.get("crc32c") != checksum or stored.get("size") != str(view.nbytes):
            raise CorruptError(
                f"stored body differs from what was sent: key={key} crc32c={stored.get('crc32c')} sent={checksum}"
                f" size={stored.get('size')} sent_bytes={view.nbytes}"
            )
        return ObjectInfo(key, view.nbytes, self._clock.wall_ms(), str(stored.get("generation", "")))

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        place, query = self._client.place(key), {"alt": "media"}
        if byte_range is None:
            return (await self._client.send("get", key, place, query=query)).body
        check_range(byte_range)
        headers = {"Range": range_header(byte_range)}
        answer = await self._client.send("get", key, place, query=query, headers=headers, size=byte_range.length)
        check_part(key, byte_range, answer)
        return answer.body

    def get_at_once(self, key: str, byte_range: ByteRange) -> memoryview | None:
        """Everything is remote."""
        return None

    async def get_many(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        """One request per range, in parallel up to `max_connections`; MergingStore joins close ranges."""
        return await read_each(self.get, key, ranges)

    async def head(self, key: str) -> ObjectInfo:
        answer = await self._client.send("head", key, self._client.place(key), query={"fields": _ENTRY})
        return self._listed(_object(answer, f"head key={key}"))

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        query = {"maxResults": str(PAGE_KEYS), "fields": f"items({_ENTRY}),nextPageToken"}
        if self._client.prefix + prefix:
            query["prefix"] = self._client.prefix + prefix
        if start_after:
            query["startOffset"] = self._client.prefix + start_after
        markers = PageMarkers(f"bucket={self._client.bucket} prefix={prefix}")
        while True:
            page = _object(
                await self._client.send("list", prefix, self._client.objects, query=query), f"list prefix={prefix}"
            )
            entries = page.get("items") or ()
            if not isinstance(entries, list | tuple):
                raise CorruptError(f"bad listing: bucket={self._client.bucket} error=items are no list")
            for entry in entries:
                info = self._listed(entry)
                if info.key > start_after:
                    yield info
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = markers.new(page["nextPageToken"])

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        """Delete objects by a request each. Keys that the store refuses to delete are logged and left out."""
        for key in keys:
            self._client.name(key)
        return await delete_each(self._delete, keys)

    async def rules(self) -> BucketRules:
        """Ask what the bucket does to objects by itself. Never raises for what the store refuses to tell."""
        fields = "versioning,lifecycle,softDeletePolicy,hierarchicalNamespace,retentionPolicy"
        try:
            answer = await self._client.send("ask", "", self._client.about, query={"fields": fields})
            told = _object(answer, "ask")
            expirations, old_expire = _expirations(told.get("lifecycle", {}).get("rule", ()))
            kept_s = float(told.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
            return BucketRules(
                versioned=bool(told.get("versioning", {}).get("enabled")),
                expirations=expirations,
                old_versions_expire=old_expire,
                date=answer.headers.get("Date", ""),
                soft_delete_days=kept_s / _DAY_S,
                is_hierarchical=bool(told.get("hierarchicalNamespace", {}).get("enabled")),
            )
        except (HeadraceError, AttributeError, TypeError, ValueError) as error:  # not as Google documents it
            return BucketRules(None, None, old_versions_expire=False, refusal=str(error), soft_delete_days=None)

    async def close(self) -> None:
        await self._client.close()

    async def _delete(self, key: str) -> None:
        await self._client.send("delete", key, self._client.place(key))

    def _listed(self, entry: dict[str, Any]) -> ObjectInfo:
        try:
            modified = datetime.fromisoformat(entry["updated"])
            key, size = str(entry["name"]).removeprefix(self._client.prefix), int(entry["size"])
            return ObjectInfo(key, size, round(modified.timestamp() * 1000), str(entry.get("generation", "")))
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise CorruptError(f"bad listing: bucket={self._client.bucket} error={error!r}") from error


def _object(answer: Answer, what: str) -> dict[str, Any]:
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"bad answer: operation={what} error={error}") from error
    if not isinstance(found, dict):
        raise CorruptError(f"bad answer: operation={what} found={type(found).__name__}")
    return found


def _expirations(rules: Sequence[dict[str, Any]]) -> tuple[tuple[Expiration, ...], bool]:
    """The rules that delete live objects, by prefix; and whether one deletes versions that are no longer live."""
    found, old_expire = [], False
    for number, rule in enumerate(rules):
        if rule.get("action", {}).get("type") != "Delete":
            continue
        condition = rule.get("condition", {})
        if (
            condition.get("isLive") is False
            or "numNewerVersions" in condition
            or "daysSinceNoncurrentTime" in condition
        ):
            old_expire = True
            continue
        days = condition.get("age")
        found += [Expiration(f"rule {number}", prefix, days) for prefix in condition.get("matchesPrefix") or ("",)]
    return tuple(found), old_expire
