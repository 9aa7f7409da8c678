"""The bucket's record of its cluster id: the object `cluster.properties`.

Place: written by `headrace storage format` (and by `headrace dev`), read by every agent before it serves.
Invariant: written once and never replaced, so a bucket always belongs to the same cluster; an agent does not start if
bucket and metastore have different cluster ids. An interrupted format can be repeated.
Source: KIP-631, meta.properties version 1. It has no node.id, because all nodes share the bucket.
"""

from __future__ import annotations

import base64
import binascii
import random
import uuid

from headrace.storage.errors import AlreadyExistsError, CorruptError, InvalidError, NotFoundError
from headrace.storage.objects.store import ObjectStore

OBJECT_KEY = "cluster.properties"
VERSION = "1"
_RESERVED = 16
"""Kafka reserves the lowest UUIDs (0 is "none", 1 the metadata topic)."""


def random_cluster_id(rng: random.Random) -> str:
    """Draw an id as Kafka's `random-uuid` does: base64url, 22 characters, never with a leading `-` that looks like
    a flag.
    """
    while True:
        value = uuid.UUID(int=rng.getrandbits(128), version=4)
        text = base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def check_cluster_id(text: str) -> str:
    """`text` itself; InvalidError if it is not a UUID in base64url that Kafka would accept."""
    try:
        value = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if len(value) != 16 or len(text) != 22 or int.from_bytes(value) < _RESERVED:
        raise InvalidError(
            f"not a cluster id: {text!r} (a UUID in base64, 22 characters: `headrace storage random-uuid` makes one)"
        )
    return text


def render(cluster_id: str) -> bytes:
    """The object's bytes."""
    return f"#\ncluster.id={cluster_id}\nversion={VERSION}\n".encode()


def parse(data: bytes) -> str:
    """The cluster id in the object's bytes. CorruptError unless they are version 1 with a valid id."""
    try:
        lines = [line.strip() for line in data.decode().splitlines()]
    except UnicodeDecodeError as error:
        raise CorruptError(f"{OBJECT_KEY} is not text") from error
    values = dict(line.partition("=")[::2] for line in lines if line and line[0] not in "#!")
    if values.get("version") != VERSION:
        raise CorruptError(f"{OBJECT_KEY} has an unknown version: {values.get('version')}")
    try:
        return check_cluster_id(values.get("cluster.id", ""))
    except InvalidError as error:
        raise CorruptError(f"{OBJECT_KEY} is damaged: {error}") from error


async def read_cluster_id(store: ObjectStore) -> str | None:
    """The bucket's cluster id; None if the bucket is not formatted. Errors as ObjectStore.get and `parse`."""
    try:
        return parse(await store.get(OBJECT_KEY))
    except NotFoundError:
        return None


async def write_cluster_id(store: ObjectStore, cluster_id: str) -> None:
    """Format the bucket. AlreadyExistsError if it belongs to another cluster; a repetition is no error."""
    try:
        await store.put(OBJECT_KEY, render(cluster_id), if_absent=True)
    except AlreadyExistsError:
        found = await read_cluster_id(store)
        if found != cluster_id:
            raise AlreadyExistsError(f"bucket belongs to another cluster: wanted={cluster_id} found={found}") from None
