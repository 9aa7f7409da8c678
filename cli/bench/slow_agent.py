"""An agent with delayed PUTs: `python -m headrace.cli.bench.slow_agent --put-delay-ms 30 --SETTING VALUE ...`.

Place: started by headrace_target.py in the place of `headrace agent`.
Invariant: except for its store it is the agent of `headrace agent`.
"""

from __future__ import annotations

import argparse
import sys

from headrace.cli.numbers import whole
from headrace.cli.options import add_settings, settings_from
from headrace.cli.process.open_process import open_process
from headrace.cli.process.serve import serve
from headrace.cli.process.shell import ProcessShell
from headrace.config.settings import Settings
from headrace.storage.clock import SystemClock
from headrace.storage.objects.delayed import DelayedStore

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
