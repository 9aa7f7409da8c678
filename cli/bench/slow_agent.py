"""An agent with delayed PUTs: `python -m headrace.cli.bench.slow_agent --put-delay-ms 30 --SETTING VALUE ...`.

Place: started by headrace_target.py in the place of `headrace agent`, for `headrace bench --put-delay-ms`. A
directory then answers as slowly as a remote bucket; no setting enables it.
Invariant of the delay: PUTs are delayed independently of each other and otherwise unchanged; nothing else is
delayed.
Invariant: except for its store it is the agent of `headrace agent`.
"""

from __future__ import annotations

import argparse
import sys

from headrace.cli.options import add_settings, settings_from, whole
from headrace.cli.process.open_process import open_process
from headrace.cli.process.serve import serve
from headrace.cli.process.shell import ProcessShell
from headrace.config.settings import Settings
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.objects.store import ObjectInfo, ObjectStore, StoreDecorator


class DelayedStore(StoreDecorator):
    """Each `put` takes `put_seconds` longer."""

    def __init__(self, inner: ObjectStore, *, put_seconds: float, clock: Clock) -> None:
        super().__init__(inner)
        self._put_seconds = put_seconds
        self._clock = clock

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        await self._clock.sleep(self._put_seconds)
        return await self._inner.put(key, body, if_absent=if_absent)


PUT_DELAY_MS_MAX = 60_000


def main() -> int:
    """Serve until a signal arrives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--put-delay-ms", type=whole(0, PUT_DELAY_MS_MAX), required=True)
    add_settings(parser, ())
    args = parser.parse_args()

    async def open_slow(settings: Settings) -> ProcessShell:
        return await open_process(
            settings,
            decorate=lambda store: DelayedStore(store, put_seconds=args.put_delay_ms / 1000, clock=SystemClock()),
        )

    return serve(settings_from(args), open_slow)


if __name__ == "__main__":
    sys.exit(main())
