"""Judges the bucket: every operation that Headrace needs, how long they take, and what the bucket does by itself.

Place: one area of `headrace doctor`. The probe writes a few objects below doctor/ and deletes them.
Invariant: only those objects are written. A store that fails is a finding, not an exception.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from headrace.cli.doctor.certificates import certificate_of, judge_certificate
from headrace.cli.doctor.deadline import in_time, on_own_loop
from headrace.cli.doctor.findings import Area, Finding, Level, of_bucket, right
from headrace.config.settings import Settings
from headrace.metastore.postgres.formatted import FormattedCluster
from headrace.storage.bucket_properties import bucket_address
from headrace.storage.clock import Clock, within
from headrace.storage.cluster_properties import read_cluster_id
from headrace.storage.errors import (
    AlreadyExistsError,
    CorruptError,
    HeadraceError,
    InvalidError,
    NotFoundError,
    ThrottledError,
)
from headrace.storage.objects.open import StoreOptions, cloud_store, open_store, s3_options
from headrace.storage.objects.store import BucketRules, ByteRange, ObjectStore

if TYPE_CHECKING:
    from headrace.storage.objects.azure import AzureStore
    from headrace.storage.objects.google import GoogleStore

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
REQUEST_MS = 5_000
"""The limit of one request; of the settings if theirs is lower."""
STEP_SECONDS = 15.0
AREA_SECONDS = 90.0
SKEW_WARN_S, SKEW_BAD_S = 30.0, 900.0
"""S3 refuses requests that were signed at a time so far from its own."""
UNREACHED = "rest"
ASK_AGAIN = "run the doctor again; if it stays so, look at the store and at the network"


async def examine(
    settings: Settings, clock: Clock, rng: random.Random, cluster: FormattedCluster | None = None
) -> list[Finding]:
    """Every finding about the bucket. `cluster`: of the metastore; None if it has none, or cannot be asked.

    The client of a store takes a second of CPU to load, and a file system may hang: not on the caller's event loop.
    """
    return await in_time(
        clock, AREA_SECONDS, AREA, "answers", on_own_loop(lambda: _examine(settings, clock, rng, cluster)), ASK_AGAIN
    )


async def _examine(
    settings: Settings, clock: Clock, rng: random.Random, cluster: FormattedCluster | None
) -> list[Finding]:
    request_ms = min(settings.s3_request_timeout_ms, REQUEST_MS)
    alone = {"store_retries": 0, "store_hedge_percent": 0, "s3_request_timeout_ms": request_ms}
    options = StoreOptions.of(msgspec.structs.replace(settings, **alone))
    try:
        store = await within(
            clock, STEP_SECONDS, asyncio.to_thread(open_store, settings.bucket, options, clock=clock, rng=rng)
        )
    except HeadraceError as error:
        return [AREA.bad("open", str(error), of_bucket(str(error), "open"))]
    except TimeoutError:
        return [AREA.unknown("open", f"no answer in {STEP_SECONDS:g} s", ASK_AGAIN)]
    try:
        found = [finding async for finding in probe(store, clock, rng, settings, cluster)]
    finally:
        await store.close()
    parts = urlsplit(settings.bucket)
    is_reached = all(finding.check != UNREACHED for finding in found)
    if parts.scheme == "s3":
        return [*found, *await _s3(settings, options, clock, is_reached=is_reached)]
    if (plain := cloud_store(settings.bucket, options, clock)) is not None:
        return [*found, *await _cloud(settings, plain, clock, is_reached=is_reached)]
    return [*found, *_disk(parts.scheme, unquote(parts.path))]


async def _cloud(
    settings: Settings, store: AzureStore | GoogleStore, clock: Clock, *, is_reached: bool
) -> list[Finding]:
    """Return what only a bucket on Azure or Google Cloud has: its certificate, rules and clock."""
    try:
        found = await examine_certificate(settings, clock)
        if is_reached:
            rules = await store.rules()
            now_ms = clock.wall_ms()
            found += [*judge_rules(rules, store.prefix, store.tells), *judge_store_clock(rules.date, now_ms)]
    finally:
        await store.close()
    return found


async def _s3(settings: Settings, options: StoreOptions, clock: Clock, *, is_reached: bool) -> list[Finding]:
    """Return what only a bucket on S3 has: its certificate, rules and clock."""
    from headrace.storage.objects.s3_client import bucket_rules, why_no_delete_objects  # here: imports botocore

    found = await examine_certificate(settings, clock)
    if not is_reached:
        return found
    chosen = s3_options(urlsplit(settings.bucket), options)
    absent = "/".join(filter(None, (chosen.prefix, "doctor/absent")))
    found += judge_delete_objects(await why_no_delete_objects(chosen, absent))
    rules = await bucket_rules(chosen)
    now_ms = clock.wall_ms()
    return [*found, *judge_rules(rules, chosen.prefix), *judge_store_clock(rules.date, now_ms)]


async def examine_certificate(settings: Settings, clock: Clock) -> list[Finding]:
    """Return the finding of the endpoint's certificate; none without https, or for a cloud's own address."""
    endpoints = {"s3": settings.s3_endpoint, "gs": settings.gcs_endpoint}
    parts = urlsplit(endpoints.get(urlsplit(settings.bucket).scheme, settings.azure_endpoint) or "")
    if parts.scheme != "https" or parts.hostname is None:
        return []
    shown = await certificate_of(parts.hostname, parts.port or 443, clock) or "it has none"
    return [judge_certificate(AREA, parts.netloc, shown, clock.wall_ms())]


async def probe(
    store: ObjectStore, clock: Clock, rng: random.Random, settings: Settings, cluster: FormattedCluster | None
) -> AsyncIterator[Finding]:
    """Write, read, list, write again under a condition, delete: each is judged by itself, as each needs another right.

    If nothing can be written, only the bucket's cluster is read; and nothing if no request is answered.
    """
    prefix = f"doctor/{uuid.UUID(int=rng.getrandbits(128), version=4)}/"
    body = rng.randbytes(PROBE_BYTES)
    keys = [f"{prefix}{number}" for number in range(PROBES)]
    put, is_answered = await _tried("put", clock, _put(store, clock, keys, body))
    yield put
    if not is_answered:
        why = "the bucket did not answer the PUT"
        yield AREA.unknown(UNREACHED, why, "run the doctor again once the bucket answers")
        return
    if put.level is not Level.BAD:
        for check, work in (
            ("get", _get(store, keys[0], body)),
            ("list", _list(store, prefix, keys)),
            ("conditional put", _conditional(store, keys[0], body[:SMALL_BYTES])),
            ("delete", _deleted(store, keys, settings.bucket)),
        ):
            yield (await _tried(check, clock, work))[0]
    yield (await _tried("cluster", clock, _belongs(store, settings, cluster)))[0]


async def _tried(check: str, clock: Clock, work: Coroutine[Any, Any, Finding]) -> tuple[Finding, bool]:
    """Return the finding, and whether the store answered."""
    try:
        return await within(clock, STEP_SECONDS, work), True
    except TimeoutError:
        return AREA.unknown(check, f"no answer in {STEP_SECONDS:g} s", ASK_AGAIN), False
    except HeadraceError as error:
        text = str(error)
        is_refusal = isinstance(error, InvalidError | ThrottledError) and "store unreachable" not in text
        is_answered = is_refusal or "No space left" in text
        return AREA.bad(check, str(error), of_bucket(str(error), check)), is_answered


async def _put(store: ObjectStore, clock: Clock, keys: list[str], body: bytes) -> Finding:
    await store.put(keys[0], body[:SMALL_BYTES])  # a refusal of a large body may be lost with its connection
    times = []
    for key in keys:
        before = clock.monotonic()
        await store.put(key, body)
        times.append((clock.monotonic() - before) * 1000)
    return judge_put(statistics.median(times))


async def _get(store: ObjectStore, key: str, body: bytes) -> Finding:
    whole, part = await store.get(key), await store.get(key, ByteRange(1000, 500))
    if whole != body or part != body[1000:1500]:
        return AREA.bad("get", "the bytes are not those that were put", "do not use this store")
    return AREA.ok("get", "an object and a range of it are what was put")


async def _list(store: ObjectStore, prefix: str, keys: list[str]) -> Finding:
    listed = [entry.key async for entry in store.list_objects(prefix)]
    if listed != keys:
        return AREA.bad("list", f"{len(listed)} of {PROBES} new objects are listed", "do not use this store")
    return AREA.ok("list", "new objects are listed at once")


async def _belongs(store: ObjectStore, settings: Settings, cluster: FormattedCluster | None) -> Finding:
    try:
        found = await read_cluster_id(store)
    except CorruptError as error:
        return AREA.bad("cluster", str(error), "do not let two clusters share a bucket and prefix")
    if found is None:
        return AREA.bad("cluster", "the bucket is not formatted", _how_to_format(settings, cluster))
    return AREA.ok("cluster", f"belongs to cluster {found}")


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
        return AREA.ok("conditional put", "a put on a condition is refused if the key is taken")
    to_do = "use a store that has it: two clusters could take one bucket"
    return AREA.bad("conditional put", "the condition is ignored: an object was replaced", to_do)


async def _deleted(store: ObjectStore, keys: list[str], bucket: str) -> Finding:
    confirmed = await store.delete_many(keys)
    if left := sorted(set(keys) - set(confirmed)):
        found = f"{len(left)} of {len(keys)} objects were not deleted, and are left: {left[0]} ..."
        return AREA.bad("delete", found, f"allow {right(bucket, 'delete')} to agents and compactors")
    with suppress(NotFoundError, InvalidError):  # without the right to list, a store says 403 of what is gone
        await store.head(keys[0])
        return AREA.bad("delete", "deleted objects are still there", "do not use this store")
    return AREA.ok("delete", f"{len(keys)} objects are gone")


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


S3_TELLS = "allow s3:GetBucketVersioning and s3:GetLifecycleConfiguration to the one who runs the doctor"


def judge_rules(rules: BucketRules, prefix: str, tells: str = S3_TELLS) -> Iterator[Finding]:
    """Return what the bucket does to objects by itself; `prefix` of our keys in the bucket. `tells`: what to do if the
    store does not say.
    """
    yield from _kept_and_folders(rules)
    if rules.versioned is None or rules.expirations is None:
        yield AREA.unknown("rules", f"the store does not tell: {rules.refusal}", tells)
        return
    ours = [rule for rule in rules.expirations if _meet(rule.prefix, f"{prefix}/" if prefix else "")]
    for rule in ours:
        days = "at a date" if rule.days is None else f"after {rule.days} days"
        found = f"the lifecycle rule {rule.rule!r} deletes objects below {rule.prefix!r} {days}"
        yield AREA.bad("lifecycle rules", found, "remove the rule: retention.ms says when records are deleted")
    if not ours:
        yield AREA.ok("lifecycle rules", "none deletes Headrace's objects")
    if rules.versioned and not rules.old_versions_expire:
        to_do = "add a lifecycle rule that deletes noncurrent versions, or turn versioning off"
        yield AREA.warn("versioning", "deleted objects are kept, and paid for, without end", to_do)
    else:
        yield AREA.ok("versioning", "old versions are deleted" if rules.versioned else "off")


def _kept_and_folders(rules: BucketRules) -> Iterator[Finding]:
    if rules.soft_delete_days:
        found = f"deleted objects are kept, and paid for, for {rules.soft_delete_days:g} days more"
        to_do = "turn soft delete off for this bucket: most files live for an hour, until they are merged"
        yield AREA.warn("soft delete", found, to_do)
    if rules.is_hierarchical:
        found = "the store has a hierarchical namespace, with which Headrace was not tested: empty folders are left"
        yield AREA.warn("folders", found, "use a bucket, or a storage account, with a flat namespace")


def judge_store_clock(date: str, now_ms: int) -> Iterator[Finding]:
    """`date`: of an answer that has just come, in whole seconds; no line without one."""
    try:
        ahead_s = parsedate_to_datetime(date).timestamp() - now_ms / 1000
    except ValueError:
        return
    side = "behind" if ahead_s > 0 else "ahead of"
    found = f"this machine's clock is {abs(ahead_s):.0f} s {side} the store's"
    if abs(ahead_s) >= SKEW_BAD_S:
        yield AREA.bad("clock", f"{found}: stores refuse such requests (RequestTimeTooSkewed)", "run NTP on both")
    elif abs(ahead_s) > SKEW_WARN_S:
        yield AREA.warn("clock", found, "run NTP on both: from 15 minutes on, stores refuse requests")
    else:
        yield AREA.ok("clock", found)


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
    if usage.free < PROBE_BYTES:
        yield AREA.bad("disk", found, "make room: every produce request is refused")
    elif usage.free < FREE_WARN * usage.total:
        yield AREA.warn("disk", found, "make room: a full disk refuses every produce request")
    else:
        yield AREA.ok("disk", found)
