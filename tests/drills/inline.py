"""The drills with low latency: what Postgres needs for small files is taken away, and comes back.

Place: next to scripts.py, where the drills are without low latency; run.py runs one of them around a cluster with
clients.
Invariant: when a script returns, what it took away is back, and small files are inline again. Clients get no error at
any time; where Postgres still commits, files go into the bucket meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.agent.produce.inline_policy import AGAIN_S, RETAINED_WAL_BYTES, InlineReason
from headrace.config.free_ports import free_ports
from load.agent_child import flags
from tests.drills.clients import QUIET
from tests.drills.recovery import summed_metrics
from tests.drills.scripts import LOOK_SECONDS, OUTAGE_SECONDS, Act
from tests.torture.cluster import TortureCluster
from tests.torture.drills import Drill
from tests.torture.servers import CREDENTIALS

MIB = 1024 * 1024
LOW_LATENCY: dict[str, object] = {"low.latency.enable": True}
HELD_MAX_BYTES = 64 * MIB
"""The least that the setting allows."""
BYTES_PER_SECOND = 6 * MIB
"""The rate of all agents while no compactor runs. As much more than HELD_MAX_BYTES may be held, because agents look
about every second."""
LOAD_TOPIC, LOAD_VALUE_BYTES, LOAD_PAUSE_S = "drill-load", 32 * 1024, 1 / 160
"""What fills the slots: 5 MiB/s."""
SOON_SECONDS = 30.0
"""The time within which agents notice."""
STOPPED_SECONDS, RUNNING_SECONDS = 1.0, 0.01
"""The standby's receiver, in turn: commits take half a second."""
INLINE_BYTES, COMMITS = "headrace_produce_inline_bytes_total", "headrace_produce_commit_seconds"
SEGMENT_BYTES = 16 * MIB
ALERTING = frozenset({InlineReason.WAL, InlineReason.HELD, InlineReason.BEHIND, InlineReason.BUCKET})
"""Reasons of the alert HeadraceLowLatencyFallsBack (deploy/prometheus/rules.yaml)."""
_REASON = re.compile(r'^headrace_produce_not_inline_total\{reason="(\w+)"\} (\S+)$', re.MULTILINE)


async def inline_disk_full(act: Act) -> None:
    """The disk of Postgres is full, with low latency"""
    await _are_inline(act, "before")
    outage = asyncio.create_task(act.cluster.drills.strike(Drill("disk_full", OUTAGE_SECONDS)))
    act.say("the last byte of Postgres' disk is taken")
    acknowledged = len(act.clients.acknowledged)
    await asyncio.sleep(LOOK_SECONDS)
    seen = await act.look(())
    act.expect("all agents stay ready", not seen.not_ready)
    act.expect("the doctor names the full disk", seen.says("postgres disk") or seen.says("postgres connect"))
    await outage
    act.say(f"there is room again; {len(act.clients.acknowledged) - acknowledged} records were acknowledged meanwhile")
    await _are_inline(act, "again")
    _gave_up_nothing(act)


async def inline_archiver_hangs(act: Act) -> None:
    """The archive_command hangs and WAL is retained, with low latency"""
    hangs = act.directory / "archiver-hangs"
    command = f"while test -e {hangs}; do sleep 0.1; done"
    await act.cluster.drills.configure(f"archive_mode = on\narchive_command = '{command}'\n")
    act.say("Postgres was started again with an archive_command")
    await asyncio.to_thread(_write_wal, act.cluster.drills.url, 1)
    await _comes("a file is archived", act, _asks(act, "SELECT last_archived_wal IS NOT NULL FROM pg_stat_archiver"))
    await _are_inline(act, "before")
    hangs.touch()
    try:
        act.say("archive_command hangs")
        before = await _reasons(act.cluster)
        await asyncio.to_thread(_write_wal, act.cluster.drills.url, RETAINED_WAL_BYTES // SEGMENT_BYTES + 2)
        act.say(f"{RETAINED_WAL_BYTES / MIB:,.0f} MiB of WAL are not archived")
        await _go_to_the_bucket(act, before, InlineReason.WAL)
        seen = await act.look(())
        act.expect("all agents stay ready", not seen.not_ready)
        act.expect("the doctor names the WAL", seen.says("low latency", "WAL"))
    finally:
        hangs.unlink()
    act.say("archive_command works again")
    await _are_inline(act, "again", patience=2 * SOON_SECONDS)
    _gave_up_nothing(act)


async def inline_mover_dead(act: Act) -> None:
    """No compactor runs, and small files fill the slots of Postgres"""
    before, most = await _reasons(act.cluster), 0
    async with _load(act.cluster):
        act.say(
            f"no process has the role compactor; {LOAD_VALUE_BYTES / LOAD_PAUSE_S / MIB:.0f} MiB/s more are written"
        )

        async def is_full() -> bool:
            nonlocal most
            most = max(most, await _held(act))
            return (await _reasons(act.cluster) - before)[InlineReason.HELD] > 0

        await _comes("requests go into the bucket because of what is held", act, is_full, patience=60)
        await _go_to_the_bucket(act, before, InlineReason.HELD)
        most = max(most, await _held(act))
        seen = await act.look(())
    limit = HELD_MAX_BYTES + BYTES_PER_SECOND
    act.say(f"at most {most / MIB:.1f} MiB were held; low.latency.held.max.bytes is {HELD_MAX_BYTES / MIB:.0f} MiB")
    act.expect(f"no more is held than the limit and a second of the rate, {limit / MIB:.0f} MiB", most <= limit)
    act.expect("all agents stay ready", not seen.not_ready)
    oldest = (await summed_metrics(act.cluster))["headrace_inline_oldest_seconds"] / len(act.cluster.agents)
    act.say(f"headrace_inline_oldest_seconds {oldest:.0f}; HeadraceInlineFilesNotMoved fires above 300")
    async with _compactor(act.cluster, act.directory / "compactor.log"):
        act.say("a compactor runs")

        async def is_drained() -> bool:
            return await _held(act) < HELD_MAX_BYTES // 8

        await _comes("what was held is in the bucket", act, is_drained, patience=120)
        act.say(f"{await _held(act) / MIB:.1f} MiB are held")
        await _are_inline(act, "again")
    _gave_up_nothing(act)


async def inline_standby_slow(act: Act) -> None:
    """The synchronous standby answers late, with low latency"""
    standby = await act.cluster.drills.add_synchronous_standby()
    act.say("a synchronous standby follows")
    await _are_inline(act, "before")
    before, sound = await _reasons(act.cluster), await summed_metrics(act.cluster)
    delay = asyncio.create_task(_delay_receiver(standby))
    act.say(f"the receiver of the standby is stopped for {STOPPED_SECONDS * 1000:.0f} ms again and again")
    try:
        await _go_to_the_bucket(act, before, InlineReason.SLOW)
        seen = await act.look(())
        slow = await summed_metrics(act.cluster)
        calls, seconds = (slow[f"{COMMITS}_{part}"] - sound[f"{COMMITS}_{part}"] for part in ("count", "sum"))
        act.say(
            f"{calls:.0f} commits took {seconds / calls:.2f} s each; HeadraceCommitsSlow fires above a p99 of 0.5 s"
        )
        act.expect("all agents stay ready", not seen.not_ready)
    finally:
        delay.cancel()
        await asyncio.gather(delay, return_exceptions=True)
    act.say("the standby answers at once again")
    await _are_inline(act, "again", patience=AGAIN_S + SOON_SECONDS)
    _gave_up_nothing(act)


INLINE_DRILLS = {
    script.__name__: script
    for script in (inline_disk_full, inline_archiver_hangs, inline_mover_dead, inline_standby_slow)
}
INLINE_SETTINGS = MappingProxyType(
    {
        "inline_mover_dead": {
            "process.roles": "broker,controller",
            "low.latency.held.max.bytes": HELD_MAX_BYTES,
            "low.latency.max.bytes.per.second": BYTES_PER_SECOND,
            "compaction.interval.ms": 2_000,
        }
    }
)
"""Settings of a drill, besides LOW_LATENCY."""


# -- what is seen


async def _are_inline(act: Act, when: str, patience: float = SOON_SECONDS) -> None:
    """Wait until more small files are in Postgres."""
    before = (await summed_metrics(act.cluster)).get(INLINE_BYTES, 0.0)

    async def more() -> bool:
        return (await summed_metrics(act.cluster)).get(INLINE_BYTES, 0.0) > before

    await _comes(f"small files are in Postgres first, {when}", act, more, patience)


async def _go_to_the_bucket(act: Act, before: Counter[str], reason: InlineReason) -> None:
    """Wait until requests are not inline for this reason, and records are still acknowledged."""

    async def some() -> bool:
        return (await _reasons(act.cluster) - before)[reason] > 0

    await _comes(f"requests go into the bucket: {reason}", act, some)
    acknowledged, counted = len(act.clients.acknowledged), await _reasons(act.cluster)
    await asyncio.sleep(LOOK_SECONDS)
    more = await _reasons(act.cluster) - counted
    count = len(act.clients.acknowledged) - acknowledged
    act.say(f"in {LOOK_SECONDS:.0f} s {count} records were acknowledged; requests not inline: {dict(more)}")
    act.expect("records are acknowledged meanwhile", count > 0)
    if reason in ALERTING:
        act.expect("the expression of HeadraceLowLatencyFallsBack is true", more[reason] > 0)


async def _comes(what: str, act: Act, is_so: Callable[[], Awaitable[bool]], patience: float = SOON_SECONDS) -> None:
    began = time.monotonic()
    while not (met := await is_so()):
        if time.monotonic() > began + patience:
            break
        await asyncio.sleep(0.25)
    act.expect(what, met)
    if met:
        act.say(f"{what} ({time.monotonic() - began:.1f} s)")


def _gave_up_nothing(act: Act) -> None:
    act.expect("librdkafka gave up no record", not act.clients.given_up)


async def _reasons(cluster: TortureCluster) -> Counter[str]:
    """Requests that were not inline, by reason, of all agents."""
    total: Counter[str] = Counter()
    for agent in cluster.agents.values():
        text = await asyncio.to_thread(_read, agent.ready_url.replace("/readyz", "/metrics"))
        total.update({reason: int(float(value)) for reason, value in _REASON.findall(text)})
    return total


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:
        text: str = response.read().decode()
    return text


async def _held(act: Act) -> int:
    """Bytes of all slots, as Postgres counts them."""
    return int(await asyncio.to_thread(_ask, act.cluster.drills.url, "SELECT held_bytes FROM inline_state()"))


def _asks(act: Act, question: str) -> Callable[[], Awaitable[bool]]:
    async def answer() -> bool:
        return bool(await asyncio.to_thread(_ask, act.cluster.drills.url, question))

    return answer


def _ask(url: str, question: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(question.encode()).fetchone()
    assert row is not None
    return int(row[0])


# -- what is done


def _write_wal(url: str, files: int) -> None:
    """End so many files of the WAL: each takes the room of a whole one."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(files):
            connection.execute("SELECT pg_logical_emit_message(false, 'drill', 'x'), pg_switch_wal()")


async def _delay_receiver(url: str) -> None:
    """Stop and continue the process that gets the WAL, until cancelled; it runs afterwards."""
    pid = await asyncio.to_thread(_ask, url, "SELECT pid FROM pg_stat_wal_receiver")
    try:
        while True:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(STOPPED_SECONDS)
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(RUNNING_SECONDS)
    finally:
        os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def _load(cluster: TortureCluster) -> AsyncIterator[None]:
    """Write records of LOAD_VALUE_BYTES meanwhile."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    await asyncio.to_thread(admin.create_topics([NewTopic(LOAD_TOPIC, 3)])[LOAD_TOPIC].result, 60)
    writing = asyncio.create_task(_write(Producer(QUIET | {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})))
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def _write(producer: Producer) -> None:
    while True:
        producer.produce(LOAD_TOPIC, os.urandom(LOAD_VALUE_BYTES))
        producer.poll(0)
        await asyncio.sleep(LOAD_PAUSE_S)


@asynccontextmanager
async def _compactor(cluster: TortureCluster, log: Path) -> AsyncIterator[None]:
    """`headrace compactor`, which reaches what the first agent reaches."""
    settings = cluster.operator_settings | dict(INLINE_SETTINGS["inline_mover_dead"]) | {"http.port": free_ports(1)[0]}
    words: Iterable[str] = flags({name: value for name, value in settings.items() if name != "process.roles"})
    with log.open("ab") as to:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headrace.cli.main", "compactor", *words,
            env=os.environ | CREDENTIALS, stdin=asyncio.subprocess.DEVNULL, stdout=to, stderr=to,
        )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        await process.wait()
