"""A Headrace for the bench: Postgres, one agent or several, one compactor, a directory or an S3 server as bucket.

Place: opened by targets.py, for this Headrace and for other versions of it.
Invariant: agents and compactor are separate processes, so that the CPU of merging files is not counted as that of
serving clients. Another version is started by its own command and uses only what all versions have: `storage format`,
`agent`, `compactor`.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from headrace.cli.bench.s3_rig import open_s3_rig, with_credentials
from headrace.cli.bench.server_process import ServerProcess
from headrace.cli.bench.target_spec import DEV, TargetSpec, headrace_command
from headrace.cli.bench.targets import MeasuredTarget
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.storage.cluster_properties import random_cluster_id

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
