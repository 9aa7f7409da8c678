"""Counts the records of each key in windows of 2 s, with Quix Streams: windows.py bootstrap folder guarantee name.

Each count goes to the topic `name-counted` as `window-start count`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Literal

from quixstreams import Application

WINDOW_MS = 2_000


def _line(window: Mapping[str, int]) -> str:
    return f"{window['start']} {window['value']}"


def main(bootstrap: str, state: str, guarantee: Literal["at-least-once", "exactly-once"], name: str) -> None:
    """Run until SIGTERM."""
    app = Application(
        broker_address=bootstrap,
        consumer_group=name,
        state_dir=state,
        auto_offset_reset="earliest",
        commit_interval=0.2,
        processing_guarantee=guarantee,
        consumer_extra_config={"session.timeout.ms": 10_000},  # after a crash, the next process waits so long
    )
    words = app.topic(f"{name}-words", value_deserializer="string")
    counted = app.topic(f"{name}-counted", value_serializer="string")
    windows = app.dataframe(words).tumbling_window(WINDOW_MS, grace_ms=WINDOW_MS).count()
    windows.current().apply(_line).to_topic(counted)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:5])  # type: ignore[arg-type]
