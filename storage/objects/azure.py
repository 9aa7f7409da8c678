"""Objects in a container of Azure Blob Storage, each one block blob.

Place: under the decorators, for az://account/container/prefix; azure_client.py sends.
Invariant: a put that returned is complete in the store. It is one Put Blob, never blocks, with the body's CRC-64: a
body that is shorter or different is refused (400). The CRC-64 of the answer is compared; a server that returns none
may have ignored it, so this store then checks the object's length with one request per put.
Invariant of conditional puts: If-None-Match: *, which Azure decides for the whole blob at once.
Azure lists keys in key order and has no start in the middle: `start_after` skips pages. An account with a hierarchical
namespace lists its folders, too: they are left out.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator, Sequence
from email.utils import parsedate_to_datetime
from urllib.parse import unquote
from xml.etree import ElementTree

from awscrt.checksums import crc64nvme

from headrace.storage.clock import Clock
from headrace.storage.errors import (
    CorruptError,
    HeadraceError,
)
from headrace.storage.objects.azure_client import AzureClient, AzureOptions
from headrace.storage.objects.http_requests import Answer, BodyOfParts, check_part, delete_each, range_header
from headrace.storage.objects.store import (
    BucketRules,
    ByteRange,
    ObjectInfo,
    PageMarkers,
    check_length,
    check_range,
    read_each,
)

PAGE_KEYS = 5000
"""Keys per listing: Azure's limit."""
TAGS_MAX = 1_000_000
"""The limit of a listing; each of its keys has about 50."""

logger = logging.getLogger(__name__)


class AzureStore:
    """One container and prefix. Connects with the first request, on the running loop; one loop per store."""

    tells = "look at the portal: versioning off, and no lifecycle rule for blobs below this prefix"
    """What to do where `rules` does not say all."""

    def __init__(self, options: AzureOptions, clock: Clock) -> None:
        """`clock` is used for the time of requests and tokens, and `modified_ms` in a put's result."""
        self._clock = clock
        self._client = AzureClient(options, clock)
        self._names_no_checksums = False

    @property
    def prefix(self) -> str:
        """The beginning of all keys in the bucket, without a slash at its end."""
        return self._client.prefix.rstrip("/")

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        view = memoryview(body).cast("B")
        checksum = base64.b64encode(crc64nvme(view).to_bytes(8, "little")).decode()
        headers = {"x-ms-blob-type": "BlockBlob", "x-ms-content-crc64": checksum}
        if if_absent:
            headers["If-None-Match"] = "*"
        answer = await self._client.send("put", key, headers=headers, body=BodyOfParts([view]))
        if (stored := answer.headers.get("x-ms-content-crc64")) is None:
            await self._check_length(key, view.nbytes)
        elif stored != checksum:
            raise CorruptError(f"stored body differs from what was sent: key={key} crc64={stored} sent={checksum}")
        return ObjectInfo(key, view.nbytes, self._clock.wall_ms(), _etag(answer))

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        if byte_range is None:
            return (await self._client.send("get", key)).body
        check_range(byte_range)
        headers = {"Range": range_header(byte_range)}
        answer = await self._client.send("get", key, headers=headers, size=byte_range.length)
        check_part(key, byte_range, answer)
        return answer.body

    def get_at_once(self, key: str, byte_range: ByteRange) -> memoryview | None:
        """Everything is remote."""
        return None

    async def get_many(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        """One request per range, in parallel up to `max_connections`; MergingStore joins close ranges."""
        return await read_each(self.get, key, ranges)

    async def head(self, key: str) -> ObjectInfo:
        answer = await self._client.send("head", key)
        try:
            modified = parsedate_to_datetime(answer.headers["Last-Modified"])
            size = int(answer.headers["Content-Length"])
            return ObjectInfo(key, size, round(modified.timestamp() * 1000), _etag(answer))
        except _NOT_AS_TOLD as error:
            raise CorruptError(f"bad answer: operation=head key={key} error={error!r}") from error

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        query = {"restype": "container", "comp": "list", "maxresults": str(PAGE_KEYS)}
        if self._client.prefix + prefix:
            query["prefix"] = self._client.prefix + prefix
        what = f"bucket={self._client.shown} prefix={prefix}"
        markers = PageMarkers(what)
        while True:
            answer = await self._client.send("list", prefix, query=query)
            try:
                page = _parsed(answer.body)
                found = [_listed(blob) for blob in page.iter("Blob") if not _is_folder(blob)]
            except _NOT_AS_TOLD as error:
                raise CorruptError(f"bad listing: {what} error={error}") from error
            for info in found:
                key = info.key.removeprefix(self._client.prefix)
                if key > start_after:
                    yield ObjectInfo(key, info.size, info.modified_ms, info.etag)
            marker = page.findtext("NextMarker")
            if not marker:
                return
            query["marker"] = markers.new(marker)

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        """Delete objects by a request each. Keys that the store refuses to delete are logged and left out."""
        for key in keys:
            self._client.name(key)
        return await delete_each(self._delete, keys)

    async def rules(self) -> BucketRules:
        """Ask what the account does to objects by itself; lifecycle rules are not shown by this API. Never raises for
        what the store refuses to tell.
        """
        try:
            about = await self._client.send("ask", "", query={"restype": "account", "comp": "properties"})
            service = await self._client.send("ask", "", query={"restype": "service", "comp": "properties"})
            policy = _parsed(service.body).find("DeleteRetentionPolicy")
            kept = policy is not None and policy.findtext("Enabled") == "true"
            days = float(policy.findtext("Days") or 0) if kept and policy is not None else 0.0
        except (HeadraceError, *_NOT_AS_TOLD) as error:
            return BucketRules(None, None, old_versions_expire=False, refusal=str(error), soft_delete_days=None)
        return BucketRules(
            versioned=None,
            expirations=None,
            old_versions_expire=False,
            refusal="Azure shows versioning and lifecycle rules to its resource manager only",
            date=service.headers.get("Date", ""),
            soft_delete_days=days,
            is_hierarchical=about.headers.get("x-ms-is-hns-enabled", "false").lower() == "true",
        )

    async def close(self) -> None:
        await self._client.close()

    async def _check_length(self, key: str, sent: int) -> None:
        """CorruptError unless the store has `sent` bytes; OutcomeUnknownError if the length is unknown."""
        if not self._names_no_checksums:
            self._names_no_checksums = True
            logger.warning("store returns no crc64, so each put is checked with a HEAD: bucket=%s", self._client.shown)
        await check_length(self.head, key, sent)

    async def _delete(self, key: str) -> None:
        await self._client.send("delete", key, headers={"x-ms-delete-snapshots": "include"})


_NOT_AS_TOLD = (ElementTree.ParseError, KeyError, OverflowError, TypeError, ValueError)
"""What the parts of an answer raise that is not as Azure documents it."""


def _parsed(body: bytes) -> ElementTree.Element:
    """The document. ParseError; ValueError if it has a document type, by which a few bytes become gigabytes, or more
    elements than any listing.
    """
    if b"<!DOCTYPE" in body or b"\0" in body:  # the second: in another encoding
        raise ValueError("a document type, or not UTF-8")
    if body.count(b"<") > TAGS_MAX:
        raise ValueError(f"more than {TAGS_MAX} tags")
    return ElementTree.fromstring(body)


def _etag(answer: Answer) -> str:
    return answer.headers.get("ETag", "").strip('"')


def _is_folder(blob: ElementTree.Element) -> bool:
    return blob.findtext("Properties/ResourceType") == "directory"


def _listed(blob: ElementTree.Element) -> ObjectInfo:
    """ValueError or TypeError for an entry that is not one."""
    name = blob.find("Name")
    if name is None or not name.text:
        raise ValueError("an entry has no name")
    text = unquote(name.text) if name.get("Encoded") == "true" else name.text
    size, etag = blob.findtext("Properties/Content-Length"), blob.findtext("Properties/Etag") or ""
    modified = parsedate_to_datetime(blob.findtext("Properties/Last-Modified") or "")
    return ObjectInfo(text, int(size or ""), round(modified.timestamp() * 1000), etag.strip('"'))
