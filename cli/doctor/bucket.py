"""Judges the bucket: every operation that Headrace needs, how long they take, and what the bucket does by itself.

Place: one area of `headrace doctor`. The probe writes a few objects below doctor/ and deletes them.
Invariant: only those objects are written. A store that fails is a finding, not an exception.
"""

from __future__ import annotations

import random
import shutil
import statistics
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from headrace.cli.doctor.findings import Area, Finding
from headrace.config.settings import Settings
from headrace.metastore.postgres.formatted import FormattedCluster
from headrace.storage.bucket_properties import bucket_address
from headrace.storage.clock import Clock
from headrace.storage.cluster_properties import read_cluster_id
from headrace.storage.errors import AlreadyExistsError, HeadraceError, NotFoundError
from headrace.storage.objects.open import StoreOptions, open_store, s3_options
from headrace.storage.objects.store import ByteRange, ObjectStore

if TYPE_CHECKING:
    from headrace.storage.objects.s3_bucket import BucketRules

AREA = Area("bucket")
PROBE_BYTES = 1024 * 1024
PROBES = 5
SMALL_BYTES = 256
"""Bytes of a PUT that is refused: a server may answer before it has read a large body, and close the
connection.
"""
PUT_WARN_MS = 300.0
"""A produce request waits for a put: with 100 ms of linger the client waits at least this long."""
FREE_WARN = 0.10


async def examine(
    settings: Settings, clock: Clock, rng: random.Random, cluster: FormattedCluster | None = None
) -> list[Finding]:
    """Every finding about the bucket. `cluster`: of the metastore; None if it has none, or cannot be asked."""
    options = StoreOptions.of(msgspec.structs.replace(settings, store_retries=0, store_hedge_percent=0))
    try:
        store = open_store(settings.bucket, options, clock=clock, rng=rng)
    except HeadraceError as error:
        return [AREA.bad("open", str(error), "correct bucket")]
    try:
        found = [finding async for finding in probe(store, clock, rng, settings, cluster)]
    finally:
        await store.close()
    parts = urlsplit(settings.bucket)
    if parts.scheme == "s3":
        from headrace.storage.objects.s3_bucket import bucket_rules, why_no_delete_objects  # here: imports botocore

        chosen = s3_options(parts, options)
        absent = "/".join(filter(None, (chosen.prefix, "doctor/absent")))
        found += judge_delete_objects(await why_no_delete_objects(chosen, absent))
        return [*found, *judge_rules(await bucket_rules(chosen), chosen.prefix)]
    return [*found, *_disk(parts.scheme, unquote(parts.path))]


async def probe(
    store: ObjectStore, clock: Clock, rng: random.Random, settings: Settings, cluster: FormattedCluster | None
) -> AsyncIterator[Finding]:
    """Write, read, list, write again under a condition, delete. Ends at the first operation that fails."""
    prefix = f"doctor/{uuid.UUID(int=rng.getrandbits(128), version=4)}/"
    body = rng.randbytes(PROBE_BYTES)
    keys = [f"{prefix}{number}" for number in range(PROBES)]
    step = "put"
    try:
        times = []
        for key in keys:
            before = clock.monotonic()
            await store.put(key, body)
            times.append((clock.monotonic() - before) * 1000)
        yield judge_put(statistics.median(times))
        step = "get"
        whole, part = await store.get(keys[0]), await store.get(keys[0], ByteRange(1000, 500))
        if whole != body or part != body[1000:1500]:
            yield AREA.bad("get", "the bytes are not those that were put", "do not use this store")
            return
        yield AREA.ok("get", "an object and a range of it are what was put")
        step = "list"
        listed = [entry.key async for entry in store.list_objects(prefix)]
        if listed != keys:
            yield AREA.bad("list", f"{len(listed)} of {PROBES} new objects are listed", "do not use this store")
            return
        yield AREA.ok("list", "new objects are listed at once")
        step = "conditional put"
        yield await _conditional(store, keys[0], body[:SMALL_BYTES])
        step = "delete"
        yield await _deleted(store, keys)
    except HeadraceError as error:
        yield AREA.bad(step, str(error), "check credentials, rights, address and network of the bucket")
        return
    try:
        found = await read_cluster_id(store)
    except HeadraceError as error:
        yield AREA.bad("cluster", str(error), "do not let two clusters share a bucket and prefix")
        return
    if found is None:
        yield AREA.bad("cluster", "the bucket is not formatted", _how_to_format(settings, cluster))
    else:
        yield AREA.ok("cluster", f"belongs to cluster {found}")


def _how_to_format(settings: Settings, cluster: FormattedCluster | None) -> str:
    """Return what to do: a metastore that is in use has its files elsewhere."""
    if cluster is None:
        return "headrace storage format"
    address = bucket_address(settings.bucket)
    if cluster.bucket is not None and cluster.bucket.address != address:
        return f"correct bucket: the metastore has its files in {cluster.bucket.address}"
    if cluster.bucket is None and cluster.has_agents:
        return "correct bucket: the metastore is in use, so its files are elsewhere"
    return f"headrace storage format --ignore-formatted --cluster-id {cluster.cluster_id}"


async def _conditional(store: ObjectStore, key: str, body: bytes) -> Finding:
    try:
        await store.put(key, body, if_absent=True)
    except AlreadyExistsError:
        return AREA.ok("conditional put", "If-None-Match is kept")
    to_do = "use a store that has it: two clusters could take one bucket"
    return AREA.bad("conditional put", "If-None-Match is ignored: an object was replaced", to_do)


async def _deleted(store: ObjectStore, keys: list[str]) -> Finding:
    confirmed = await store.delete_many(keys)
    try:
        await store.head(keys[0])
    except NotFoundError:
        if sorted(confirmed) == sorted(keys):
            return AREA.ok("delete", f"{len(keys)} objects are gone")
    return AREA.bad("delete", "deleted objects are still there", "give agents and compactors the right to delete")


def judge_put(milliseconds: float) -> Finding:
    """The median time to put PROBE_BYTES."""
    found = f"1 MiB takes {milliseconds:.0f} ms"
    if milliseconds > PUT_WARN_MS:
        return AREA.warn("put", found, "use a bucket in this region: every produce request waits for a put")
    return AREA.ok("put", found)


def judge_delete_objects(refusal: str) -> Iterator[Finding]:
    """`refusal`: of a request that deletes many objects; empty if there was none."""
    if refusal:
        found = f"the store does not delete many objects in one request: {refusal}"
        to_do = "expect a request for each deleted object; if there is a newer version of the store, try it"
        yield AREA.warn("DeleteObjects", found, to_do)


def judge_rules(rules: BucketRules, prefix: str) -> Iterator[Finding]:
    """Return what the bucket does to objects by itself; `prefix` of our keys in the bucket."""
    if rules.versioned is None or rules.expirations is None:
        to_do = "allow s3:GetBucketVersioning and s3:GetLifecycleConfiguration to the one who runs the doctor"
        yield AREA.warn("rules", f"the store does not tell: {rules.refusal}", to_do)
        return
    ours = [rule for rule in rules.expirations if _meet(rule.prefix, f"{prefix}/" if prefix else "")]
    for rule in ours:
        found = f"the lifecycle rule {rule.rule!r} deletes objects below {rule.prefix!r} after {rule.days} days"
        yield AREA.bad("lifecycle rules", found, "remove the rule: retention.ms says when records are deleted")
    if not ours:
        yield AREA.ok("lifecycle rules", "none deletes Headrace's objects")
    if rules.versioned and not rules.old_versions_expire:
        to_do = "add a lifecycle rule that deletes noncurrent versions, or turn versioning off"
        yield AREA.warn("versioning", "deleted objects are kept, and paid for, without end", to_do)
    else:
        yield AREA.ok("versioning", "old versions are deleted" if rules.versioned else "off")


def _meet(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _disk(scheme: str, path: str) -> Iterator[Finding]:
    """A directory is for one machine, and its disk may fill up."""
    if scheme != "file":
        return
    try:
        usage = shutil.disk_usage(Path(path))
    except OSError as error:
        yield AREA.bad("disk", str(error), "create the directory")
        return
    found = f"{usage.free / 1024**3:,.1f} of {usage.total / 1024**3:,.1f} GiB are free"
    if usage.free < FREE_WARN * usage.total:
        yield AREA.warn("disk", found, "make room: a full disk refuses every produce request")
    else:
        yield AREA.ok("disk", found)
