"""What a role is to the process that runs it.

Place: implemented by agent/serve/broker.py, agent/serve/controller/controller_role.py, compactor_role.py and
worker_thread.py; run by shell.py.
Invariant: a role closes no connection that it was given. `drain` and `close` are safe in any state, also after a
failed `start`.
"""

from __future__ import annotations

from typing import Any, Protocol

from headrace.storage.dependency import NotReady


class Role(Protocol):
    """Broker, controller or compactor. All methods but `not_ready` run on the process's main loop."""

    title: str
    """What log lines and /readyz call it."""
    needs_bucket: bool
    """Whether the process is ready only while the bucket answers."""

    async def start(self) -> None:
        """Begin to work. Raises the error that prevented it."""

    async def drain(self, grace_seconds: float) -> None:
        """Finish the work in progress, within the grace period; the other roles still run."""

    async def close(self, grace_seconds: float) -> None:
        """Leave and stop, once every role of the same member is drained."""

    def not_ready(self) -> NotReady | None:
        """Return None while it can take work, as far as it knows itself. Runs on the HTTP thread: reads known state
        only.
        """


class MainRole(Role, Protocol):
    """The role that represents its process: broker, else controller, else compactor."""

    def ready_fields(self) -> str:
        """Its part of the line that the command prints when it is ready."""

    async def status(self) -> dict[str, Any]:
        """The page /v1/status: for people."""
