"""The S3 server of the bench behind its proxy: what it delays, and what it leaves as it is."""

from __future__ import annotations

import asyncio
import math
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from headrace.cli.bench import headrace_target
from headrace.cli.bench.headrace_target import (
    BUCKET,
    PROXY,
    find_program,
    open_s3_rig,
    proxy_flags,
    s3_client,
    with_credentials,
)
from headrace.cli.bench.server_process import ServerProcess
from headrace.cli.bench.targets import S3Latency
from headrace.config.errors import ConfigError

DRAWS = 4_000
PUT_MS = 60.0


def _waits(latency: S3Latency, method: str = "PUT", draws: int = DRAWS) -> list[float]:
    command = [find_program(PROXY), *proxy_flags(latency), "-sample", str(draws), "-method", method]
    return [float(line) for line in subprocess.run(command, check=True, capture_output=True).stdout.split()]


@pytest.mark.needs("s3-latency")
def test_waits_are_log_normal_and_decided_by_the_seed() -> None:
    waits = _waits(S3Latency(put_ms=45, sigma=0.5, seed=1))
    logs = [math.log(wait) for wait in waits]
    assert len(waits) == DRAWS
    assert statistics.median(waits) == pytest.approx(45, rel=0.05)
    assert statistics.stdev(logs) == pytest.approx(0.5, rel=0.05)
    assert statistics.mean(logs) == pytest.approx(math.log(45), abs=0.05)
    assert _waits(S3Latency(put_ms=45, sigma=0.5, seed=1)) == waits
    assert _waits(S3Latency(put_ms=45, sigma=0.5, seed=2)) != waits


@pytest.mark.needs("s3-latency")
@pytest.mark.parametrize(("method", "wait"), [("PUT", 45), ("POST", 45), ("DELETE", 45), ("GET", 15), ("HEAD", 15)])
def test_reads_wait_by_get_ms_and_writes_by_put_ms(method: str, wait: float) -> None:
    assert _waits(S3Latency(put_ms=45, get_ms=15, sigma=0), method, 3) == [wait] * 3


@pytest.mark.needs("s3-latency", "versitygw")
async def test_puts_wait_and_bodies_pass_unchanged(tmp_path: Path) -> None:
    body = bytes(range(256)) * 8_192
    async with open_s3_rig(tmp_path, S3Latency(put_ms=PUT_MS, get_ms=0, sigma=0)) as rig:
        assert set(rig.roots) == {"s3", "proxy"}
        async with s3_client(rig.endpoint) as client:
            await client.head_bucket(Bucket=BUCKET)
            seconds = []
            for number in range(3):  # on one connection, with bodies that are small, none and large
                began = time.monotonic()
                await client.put_object(Bucket=BUCKET, Key=f"key-{number}", Body=body[: number**8 * len(body) // 256])
                seconds.append(time.monotonic() - began)
            assert min(seconds) >= PUT_MS / 1000
            answer = await client.get_object(Bucket=BUCKET, Key="key-2")
            assert await answer["Body"].read() == body
            answer = await client.get_object(Bucket=BUCKET, Key="key-2", Range="bytes=5-9")
            assert await answer["Body"].read() == body[5:10]
        async with s3_client(rig.direct) as client:
            assert (await client.head_object(Bucket=BUCKET, Key="key-1"))["ContentLength"] == len(body) // 256


REQUESTS = b"".join(
    (
        b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n" + bytes(70_000),
        b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=1\r\n0123456789\r\n0\r\nt: 1\r\n\r\n",
        b"HEAD /a HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
    )
)


@pytest.mark.needs("s3-latency")
async def test_requests_of_a_connection_arrive_as_they_were_sent(tmp_path: Path) -> None:
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.read())
        writer.write(b"all the answers")
        writer.close()

    async with await asyncio.start_server(collect, "127.0.0.1", 0) as upstream:
        host, port = upstream.sockets[0].getsockname()
        async with ServerProcess([find_program(PROXY), "-upstream", f"{host}:{port}"], tmp_path / "log") as proxy:
            ready = await proxy.line(r"ready (\S+):(\d+)")
            reader, writer = await asyncio.open_connection(ready[1], int(ready[2]))
            writer.write(REQUESTS)
            writer.write_eof()
            assert await reader.read() == b"all the answers"
            writer.close()
    assert await received == REQUESTS


def test_a_missing_program_is_named_with_the_way_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(headrace_target.TOOLS, str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"headrace-s3-latency is neither in .* nor on PATH: install Go .*make tools"):
        find_program(PROXY)


def test_other_credentials_of_the_environment_are_left_out() -> None:
    env = with_credentials({"PATH": "/bin", "AWS_PROFILE": "mine", "AWS_SESSION_TOKEN": "x"})
    assert env.keys() == {"PATH", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"}
