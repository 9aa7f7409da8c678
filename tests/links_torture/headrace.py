"""The cluster that copies: Postgres, an agent, and a compactor, which can be killed and started again.

Invariant: leaving the context ends every process that was started here, by its id.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.cli.bench.headrace_target import server_flags
from headrace.cli.bench.server_process import ServerProcess
from headrace.cli.children import die_with_parent
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.storage.cluster_properties import random_cluster_id

COMMAND = [sys.executable, "-m", "headrace.cli.main"]


class Compactor:
    """A `headrace compactor` that is killed and started again."""

    def __init__(self, flags: list[str], log: Path) -> None:
        self._flags, self._log = flags, log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Return at once."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *COMMAND, "compactor", *self._flags,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent,
            )  # fmt: skip

    async def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def headrace(folder: Path) -> AsyncIterator[tuple[str, Compactor]]:
    """The agent's address, and the compactor, which runs."""
    postgres = EmbeddedPostgres(folder / "postgres")
    bucket, log = folder / "bucket", folder / "agent.log"
    bucket.mkdir()
    url = await asyncio.to_thread(postgres.start)
    try:
        storage = ["--metastore-url", url, "--bucket", bucket.as_uri()]
        formatting = [*COMMAND, "storage", "format", "-t", random_cluster_id(random.SystemRandom()), *storage]
        async with ServerProcess(formatting, log) as process:
            await process.output()
        flags = [*storage, *server_flags({"log.level": "info"})]
        roles = ["--process-roles", "broker,controller"]
        async with ServerProcess([*COMMAND, "agent", *flags, *roles], log) as agent:
            ready = await agent.line(r"ready node=\d+ kafka=(\S+) http=(\S+)")
            compactor = Compactor(flags, folder / "compactor.log")
            await compactor.start()
            try:
                yield ready[1], compactor
            finally:
                await compactor.kill()
    finally:
        await asyncio.to_thread(postgres.stop)
