"""Driver processes from the bench's side: started, made to begin at the same moment, asked for their answer.

Place: used by loads.py; the processes are produce_driver.py and consume_driver.py.
Invariant: a driver ends with the bench: its standard input closes.
"""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import Generic, TypeVar

import msgspec

from headrace.cli.bench.orders import ConsumeAnswer, ConsumeOrder, ProduceAnswer, ProduceOrder
from headrace.cli.kernel_calls import die_with_parent
from headrace.storage.errors import UnavailableError

Answer = TypeVar("Answer", ProduceAnswer, ConsumeAnswer)
LINE_BYTES_MAX = 1024 * 1024
END_SECONDS = 5


class Driver(Generic[Answer]):
    """Use it with `async with`: on entry it is connected and waits for `go`."""

    def __init__(self, module: str, order: msgspec.Struct, answer: type[Answer]) -> None:
        self._command = [sys.executable, "-m", f"headrace.cli.bench.{module}", msgspec.json.encode(order).decode()]
        self._answer: type[Answer] = answer

    async def __aenter__(self) -> Driver[Answer]:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=pipe, preexec_fn=die_with_parent, limit=LINE_BYTES_MAX
        )
        self._complaints = asyncio.create_task(self._read_complaints())
        if await self._line() != "ready":
            raise await self._failure()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._complaints

    def go(self) -> None:
        """Begin."""
        self._tell("go")

    def until(self, records: int) -> None:
        """End once so many records are read."""
        self._tell(f"until {records}")

    async def answer(self) -> Answer:
        """Return what it measured; UnavailableError with its last line on stderr if it failed."""
        line = await self._line()
        if not line.startswith("{"):
            raise await self._failure()
        answer: Answer = msgspec.json.decode(line, type=self._answer)
        return answer

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def _line(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    async def _read_complaints(self) -> list[str]:
        assert self._process.stderr is not None
        return [line.decode(errors="replace").rstrip() async for line in self._process.stderr]

    async def _failure(self) -> UnavailableError:
        lines = await self._complaints
        return UnavailableError(f"a client process failed: {lines[-1] if lines else 'without a message'}")


def producer(order: ProduceOrder) -> Driver[ProduceAnswer]:
    """A process with one librdkafka producer."""
    return Driver("produce_driver", order, ProduceAnswer)


def consumer(order: ConsumeOrder) -> Driver[ConsumeAnswer]:
    """A process with one librdkafka consumer."""
    return Driver("consume_driver", order, ConsumeAnswer)
