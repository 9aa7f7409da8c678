"""The bucket's own id, and the address under which it is known: the object `bucket.properties`.

Place: written by `headrace storage format`, by the first agent of a release that knows ids, and by `headrace storage
adopt-bucket`; compared with the metastore's row by every process (metastore/life/own_bucket.py).
Invariant: an id is drawn once for a bucket. Only adopt-bucket replaces it, because a copy of a bucket has the id of its
original. The address has no endpoint, no credentials and no options: it says which bucket a setting names, not how it
is reached.
"""

from __future__ import annotations

import os
import uuid
from urllib.parse import unquote, urlsplit

from headrace.config.addresses import azure_place
from headrace.storage.errors import AlreadyExistsError, CorruptError, NotFoundError
from headrace.storage.objects.store import ObjectStore

OBJECT_KEY = "bucket.properties"
VERSION = "1"


def bucket_address(url: str) -> str:
    """Return the one spelling of an address that open_store accepts: scheme, bucket and prefix, or directory."""
    if (place := azure_place(url)) is not None:
        return place.address
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme == "file":
        return f"file://{os.path.normpath('/' + path.lstrip('/'))}"
    return f"{parts.scheme}://{parts.netloc}/{path.strip('/')}".rstrip("/")


def render(bucket_id: uuid.UUID) -> bytes:
    """The object's bytes."""
    return f"#\nbucket.id={bucket_id}\nversion={VERSION}\n".encode()


def parse(data: bytes) -> uuid.UUID:
    """The id in the object's bytes. CorruptError unless they are version 1 with a UUID."""
    try:
        lines = [line.strip() for line in data.decode().splitlines()]
        values = dict(line.partition("=")[::2] for line in lines if line and line[0] not in "#!")
        if values.get("version") != VERSION:
            raise CorruptError(f"{OBJECT_KEY} has an unknown version: {values.get('version')}")
        return uuid.UUID(values.get("bucket.id", ""))
    except ValueError as error:  # not text, or no UUID
        raise CorruptError(f"{OBJECT_KEY} is damaged: {error}") from error


async def read_bucket_id(store: ObjectStore) -> uuid.UUID | None:
    """The bucket's id; None if it has none yet. Errors as ObjectStore.get and `parse`."""
    try:
        return parse(await store.get(OBJECT_KEY))
    except NotFoundError:
        return None


async def ensure_bucket_id(store: ObjectStore, drawn: uuid.UUID) -> uuid.UUID:
    """The bucket's id; `drawn` from now on if it had none."""
    try:
        await store.put(OBJECT_KEY, render(drawn), if_absent=True)
    except AlreadyExistsError:
        return parse(await store.get(OBJECT_KEY))
    return drawn


async def replace_bucket_id(store: ObjectStore, drawn: uuid.UUID) -> None:
    """Give the bucket another id: for adopt-bucket, while no process uses it."""
    await store.put(OBJECT_KEY, render(drawn))
