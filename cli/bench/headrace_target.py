"""A Headrace for the bench: Postgres, one agent or several, one compactor, a directory or an S3 server as bucket.

Place: opened by targets.py, for this Headrace and for other versions of it. The S3 server of `bucket=s3` is
versitygw, with a proxy before it that adds latency; load/benchmarks/s3_rig.py measures it alone. Both programs are
not part of Headrace: `make tools` of a checkout builds them with Go (tests/tools/go-s3 has the proxy).
Invariant of the S3 server: both are separate processes, so that their CPU is not counted as the target's. All that
Headrace sends to S3 passes the proxy. It waits before each request and then streams: it adds latency and does not
limit throughput.
Invariant: agents and compactor are separate processes, so that the CPU of merging files is not counted as that of
serving clients. Another version is started by its own command and uses only what all versions have: `storage
format`, `agent`, `compactor`.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aioboto3
from aiobotocore.config import AioConfig

from headrace.cli.bench.server_process import START_SECONDS, ServerProcess
from headrace.cli.bench.targets import DEV, MeasuredTarget, S3Latency, TargetSpec, headrace_command
from headrace.config.errors import ConfigError
from headrace.config.free_ports import free_ports
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.cluster_properties import random_cluster_id
from headrace.storage.errors import UnavailableError


def accepts(port: int) -> bool:
    """Return whether a server listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


SERVER, PROXY = "headrace-s3-server", "headrace-s3-latency"
"""versitygw on a directory, and the proxy: `make tools` builds both."""
TOOLS = "HEADRACE_TEST_TOOLS"
"""Environment variable: where `make tools` installs."""
BUCKET, PREFIX, REGION = "bench", "headrace", "us-east-1"
KEY_ID, KEY = "headrace-bench", "headrace-bench-secret"
PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class S3Rig:
    """A server with the empty bucket BUCKET. `endpoint` is the proxy's URL, `direct` the server's."""

    endpoint: str
    direct: str
    roots: dict[str, tuple[int, ...]]
    """Processes by kind."""

    @property
    def bucket_url(self) -> str:
        """The place where a cluster keeps its data."""
        return f"s3://{BUCKET}/{PREFIX}"

    @property
    def flags(self) -> list[str]:
        """Settings of a process of Headrace, besides the bucket."""
        return ["--s3-endpoint", self.endpoint, "--s3-region", REGION]


def with_credentials(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that uses the server: nothing in it names other credentials."""
    others = {name: value for name, value in env.items() if not name.startswith("AWS_")}
    return others | {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def find_program(name: str) -> str:
    """Return the path of a program that `make tools` builds; ConfigError if it is not there."""
    folder = Path(os.environ.get(TOOLS, Path.home() / ".cache" / "headrace-test-tools")) / "bin"
    if found := shutil.which(name, path=f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"):
        return found
    raise ConfigError(
        f"{name} is neither in {folder} nor on PATH: install Go (https://go.dev/dl) and run `make tools` in a checkout"
        " of Headrace"
    )


@asynccontextmanager
async def open_s3_rig(folder: Path, latency: S3Latency) -> AsyncIterator[S3Rig]:
    """Started on an empty directory in `folder`. ConfigError without the programs."""
    server_program, proxy_program = find_program(SERVER), find_program(PROXY)
    (port,) = free_ports(1)
    data, sidecar = folder / "s3-data", folder / "s3-sidecar"
    data.mkdir(parents=True)
    sidecar.mkdir()
    gateway = [server_program, "--port", f"127.0.0.1:{port}", "--keep-alive", "--quiet", "--region", REGION]
    keys = os.environ | {"ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": KEY}
    log, direct = folder / "s3.log", f"http://127.0.0.1:{port}"
    async with ServerProcess([*gateway, "posix", "--sidecar", str(sidecar), str(data)], log, keys) as server:
        await _until_ready(server, port, SystemClock())
        async with s3_client(direct) as client:
            await client.create_bucket(Bucket=BUCKET)
        proxy_command = [proxy_program, "-upstream", f"127.0.0.1:{port}", *proxy_flags(latency)]
        async with ServerProcess(proxy_command, log) as proxy:
            ready = await proxy.line(r"ready (\S+)")
            yield S3Rig(f"http://{ready[1]}", direct, {"s3": (server.pid,), "proxy": (proxy.pid,)})


def proxy_flags(latency: S3Latency) -> list[str]:
    """Options of the proxy. Pure."""
    return [
        *("-put-ms", str(latency.put_ms), "-get-ms", str(latency.get_ms)),
        *("-sigma", str(latency.sigma), "-seed", str(latency.seed)),
    ]


def s3_client(endpoint: str) -> Any:
    """Return an aiobotocore client, to be used with `async with`."""
    session = aioboto3.Session(aws_access_key_id=KEY_ID, aws_secret_access_key=KEY, region_name=REGION)
    return session.client("s3", endpoint_url=endpoint, config=AioConfig(signature_version="s3v4"))


async def _until_ready(server: ServerProcess, port: int, clock: Clock) -> None:
    until = clock.monotonic() + START_SECONDS
    while clock.monotonic() < until:
        if server.ended():
            raise server.failure()
        if await asyncio.to_thread(accepts, port):
            return
        await clock.sleep(PAUSE_SECONDS)
    raise UnavailableError(f"{SERVER} was not ready within {START_SECONDS} s")


THIS = [sys.executable, "-m", "headrace.cli.main"]
SLOW_AGENT = [sys.executable, "-m", "headrace.cli.bench.slow_agent"]


@asynccontextmanager
async def open_headrace(spec: TargetSpec, folder: Path) -> AsyncIterator[MeasuredTarget]:
    """Started on empty storage in `folder`."""
    command, options = THIS if spec.kind == DEV else headrace_command(spec.where), spec.options()
    agent_command, env = [*command, "agent"], dict(os.environ)
    if spec.kind != DEV:  # another version imports its own modules
        env.pop("PYTHONPATH", None)
    if options.put_delay_ms:
        agent_command = [*SLOW_AGENT, "--put-delay-ms", str(options.put_delay_ms)]
    log = folder / "headrace.log"
    async with AsyncExitStack() as stack:
        postgres = EmbeddedPostgres(folder / "postgres")
        stack.callback(postgres.stop)
        url = await asyncio.to_thread(postgres.start)
        storage, rig_roots = ["--metastore-url", url], {}
        if options.s3:
            rig = await stack.enter_async_context(open_s3_rig(folder, options.s3))
            storage += ["--bucket", rig.bucket_url, *rig.flags]
            env, rig_roots = with_credentials(env), rig.roots
        else:
            bucket = folder / "bucket"
            bucket.mkdir(parents=True)
            storage += ["--bucket", bucket.as_uri()]
        cluster_id = random_cluster_id(random.SystemRandom())
        await _output([*command, "storage", "format", "-t", cluster_id, *storage], log, env)
        version = await _output([*command, "version"], log, env)
        flags = [*storage, *server_flags(spec.passed_on())]
        agents = [
            await stack.enter_async_context(ServerProcess([*agent_command, *flags], log, env))
            for _ in range(options.agents)
        ]
        ready = [await agent.line(r"ready node=\d+ kafka=(\S+) http=(\S+)") for agent in agents]
        compactor = await stack.enter_async_context(ServerProcess([*command, "compactor", *flags], log, env))
        compacting = await compactor.line(r"ready compactor=\S+ http=(\S+)")
        yield MeasuredTarget(
            spec.name,
            bootstrap=",".join(line[1] for line in ready),
            version=version.strip(),
            roots={
                "agent": tuple(agent.pid for agent in agents),
                "postgres": (_postmaster(folder),),
                "compactor": (compactor.pid,),
            },
            rig_roots=rig_roots,
            metrics=(*(line[2] for line in ready), compacting[1]),
            metastore_url=url,
        )


async def _output(command: list[str], log: Path, env: dict[str, str]) -> str:
    async with ServerProcess(command, log, env) as process:
        return await process.output()


def server_flags(settings: dict[str, str]) -> list[str]:
    """Return the flags of agents and compactor: free ports of this machine and few log lines, unless `settings` say
    otherwise.
    """
    given = {"http.port": "0", "log.level": "warning", "listeners": "PLAINTEXT://127.0.0.1:0"} | settings
    return [part for name, value in given.items() for part in (f"--{name.replace('.', '-')}", value)]


def _postmaster(folder: Path) -> int:
    return int((folder / "postgres" / "pgdata" / "postmaster.pid").read_text().split("\n", 1)[0])
