"""One `headrace agent` as a child process that is forked from loaded code.

Place: under children.py and the tests' agents. An agent spends most of its start on loading code. Here a process
without threads, Python's fork server, loads it once, and each agent is a copy of that process: it starts at once, and
shares the memory of the code.
Invariant: the child does what `headrace agent` with these words does, with this output. The kernel sends it SIGTERM
when the fork server ends, which ends with the process that asked for it.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from headrace.cli.kernel_calls import die_with_parent, name_process

CODE = ("headrace.cli.process.loaded", "headrace.cli.process.worker_thread")
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
