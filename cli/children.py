"""`headrace agent` as a child process: start it, wait until it is ready, stop it.

Place: used by `headrace dev`, and by `headrace agent --processes`; tests use the forked process. An agent spends
most of its start on loading code. Here a process without threads, Python's fork server, loads it once, and each
agent is a copy of that process: it starts at once, and shares the memory of the code. The bench asks the kernel for
the same end of its children (prctl(2)).
Invariant of the settings in which the agents of one command differ: no two agents get the same node id or the same
address. Process 0 has exactly the addresses that were configured, so the first port of a range is the one to
bootstrap from.
Invariant of a forked agent: the child does what `headrace agent` with these words does, with this output. The kernel
sends it SIGTERM when the fork server ends, which ends with the process that asked for it.
Invariant: the child gets SIGTERM when this process exits for any reason. It is in a separate process group: Ctrl-C
in a terminal reaches the parent only, which passes it on once. A child that got it twice would end without draining.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from headrace.config.bounds import NODE_ID_MAX
from headrace.config.errors import ConfigError
from headrace.config.listeners import BROKER, COMPACTOR, Endpoint, listeners, listeners_text, roles
from headrace.config.settings import Settings
from headrace.storage.errors import UnavailableError

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


def die_with_parent() -> None:
    """This process gets SIGTERM when its parent exits for any reason."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def name_process(name: str) -> None:
    """Set the name that `top` and `ps -o comm` show, up to 15 bytes."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


PORT_MAX = 65_535


def places(settings: Settings, count: int) -> list[dict[str, str]]:
    """Names and values for each of `count` agents. ConfigError if they do not fit next to each other."""
    if BROKER not in roles(settings):
        raise ConfigError("--processes: process.roles does not include broker")
    if settings.node_id is not None and settings.node_id + count - 1 > NODE_ID_MAX:
        raise ConfigError(f"--processes: node ids would exceed {NODE_ID_MAX}")
    found = listeners(settings)
    bound = [*found.serving, *([found.controller] if found.controller else [])]
    _refuse_shared_ports([e.port + index for index in range(count) for e in bound if e.port], bound)
    return [_place(settings, bound, found.advertised, found.inter_broker, index) for index in range(count)]


def _place(
    settings: Settings, bound: list[Endpoint], advertised: Iterable[Endpoint], between: str | None, index: int
) -> dict[str, str]:
    place = {"listeners": listeners_text(moved(endpoint, index) for endpoint in bound)}
    if settings.advertised_listeners:
        # A balancer's address is the same for all; agents connect to each other directly.
        place["advertised.listeners"] = listeners_text(
            endpoint if settings.advertised_shared and endpoint.name != between else moved(endpoint, index)
            for endpoint in advertised
        )
    if settings.node_id is not None:
        place["node.id"] = str(settings.node_id + index)
    if index:
        place["process.roles"] = ",".join(sorted(roles(settings) - {COMPACTOR}))
    return place


def moved(endpoint: Endpoint, index: int) -> Endpoint:
    """Return agent `index`'s endpoint. Port 0 stays: it picks a free one, or advertises the bound one."""
    return replace(endpoint, port=endpoint.port + index) if endpoint.port else endpoint


def _refuse_shared_ports(ports: list[int], bound: list[Endpoint]) -> None:
    if len(set(ports)) < len(ports):
        raise ConfigError(
            f"--processes: the ports of two listeners overlap, each needs one per process: {listeners_text(bound)}"
        )
    if ports and max(ports) > PORT_MAX:
        raise ConfigError(f"--processes: ports would exceed {PORT_MAX}: {listeners_text(bound)}")


CODE = ("headrace.cli.process.loaded", "headrace.cli.process.compactor_role")
"""Most agents that share a machine also do background work."""
HIGH = 100
"""Descriptors from here on are not yet open in the fork server."""
_CONTEXT = multiprocessing.get_context("forkserver")


def load_code(also: Sequence[str] = ()) -> None:
    """Start the fork server, which begins to import an agent's code and the modules `also`.

    Returns at once; later calls change nothing. A terminal's Ctrl-C, which reaches the fork server too, does not end
    it in the middle of an import.
    """
    _CONTEXT.set_forkserver_preload([*CODE, *also])
    resource_tracker.ensure_running()  # it unblocks the signal
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def fork_agent(words: Sequence[str], output: int, keep_open: Sequence[int] = (), *, errors: int = 2) -> BaseProcess:
    """A running process as of `headrace agent *words`, as the only one of its process group.

    Its standard output goes to the descriptor `output`, which the caller keeps, and its standard error to `errors`. It
    has the descriptors `keep_open` under the same numbers, and this process's environment of now.
    """
    load_code()
    wanted = {1: output, 2: errors, **{descriptor: descriptor for descriptor in keep_open}}
    passed = {number: Connection(os.dup(descriptor), readable=False) for number, descriptor in wanted.items()}
    try:
        process = _CONTEXT.Process(target=_run, args=(list(words), passed, dict(os.environ)), daemon=True)
        process.start()
        return process
    finally:
        for connection in passed.values():
            connection.close()


def _run(words: list[str], passed: dict[int, Connection], environment: dict[str, str]) -> None:
    die_with_parent()
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]  # it keeps the fork server alive
    os.environ.clear()
    os.environ.update(environment)
    os.setpgid(0, 0)
    name_process("headrace agent")
    high = [(number, fcntl.fcntl(each.fileno(), fcntl.F_DUPFD, HIGH)) for number, each in passed.items()]
    for connection in passed.values():
        connection.close()  # their numbers may be among those that are wanted
    for number, descriptor in high:
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    from headrace.cli.main import main  # here, so that the parent imports no more commands than its own

    sys.exit(main(["agent", *words]))


STOP_SECONDS = 20


class AgentProcess:
    """One child process; `settings` are dotted names and values, passed as flags."""

    def __init__(self, settings: dict[str, str], words: Sequence[str] = (), keep_open: Sequence[int] = ()) -> None:
        """`words`: more arguments; `keep_open`: descriptors that the child gets."""
        flags = [part for name, value in settings.items() for part in (f"--{name.replace('.', '-')}", value)]
        self._arguments, self._keep_open = [*words, *flags], keep_open
        self._process: BaseProcess | None = None
        self._output: asyncio.ReadTransport | None = None
        self._exited = asyncio.Event()
        self._fields: dict[str, str] = {}

    @property
    def kafka_address(self) -> str:
        """Return where clients connect; "?" before it is ready."""
        return self._fields.get("kafka", "?")

    @property
    def was_started(self) -> bool:
        """Whether there is a process, or was one."""
        return self._process is not None

    def field(self, name: str) -> str:
        """A field of the ready line; "?" before it is ready."""
        return self._fields.get(name, "?")

    async def start(self) -> str:
        """Start the child and return its ready line. UnavailableError if it exits instead."""
        lines = await self._start()
        async for raw in lines:
            line = raw.decode().rstrip()
            if line.startswith("ready "):
                self._fields = dict(re.findall(r"(\w+)=(\S+)", line))
                return f"{line} pid={self._process.pid if self._process else 0}"
        raise UnavailableError(f"agent exited while starting: status={await self.wait()}")

    async def _start(self) -> asyncio.StreamReader:
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        lines = asyncio.StreamReader()
        self._output, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reading, "rb")
        )
        forked = asyncio.create_task(asyncio.to_thread(fork_agent, self._arguments, writing, self._keep_open))
        try:
            self._process = await asyncio.shield(forked)
        except asyncio.CancelledError:
            self._process = await forked  # else nothing would stop it
            raise
        finally:
            os.close(writing)
            if self._process is not None:
                loop.add_reader(self._process.sentinel, self._on_exit)
        return lines

    def _on_exit(self) -> None:
        assert self._process is not None
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        if self._output is not None:
            self._output.close()
        self._exited.set()

    async def wait(self) -> int:
        """The exit status, after the process has exited; negative: the signal that ended it."""
        await self._exited.wait()
        assert self._process is not None
        return int(self._process.exitcode or 0)

    def terminate(self) -> None:
        """SIGTERM, if it runs."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL if it does not exit in time."""
        if not self.was_started:
            return
        self.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._exited.wait()
        except TimeoutError:
            self.kill()
            await self._exited.wait()
