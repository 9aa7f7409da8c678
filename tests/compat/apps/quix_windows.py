"""Counts the records of each key in windows of 2 s, with Quix Streams: quix_windows.py bootstrap state-folder.

Each count goes to the topic `quix-counted` as `window-start count`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from quixstreams import Application

WINDOW_MS = 2_000


def _line(window: Mapping[str, int]) -> str:
    return f"{window['start']} {window['value']}"


def main(bootstrap: str, state: str) -> None:
    """Run until SIGTERM."""
    app = Application(
        broker_address=bootstrap,
        consumer_group="quix",
        state_dir=state,
        auto_offset_reset="earliest",
        commit_interval=0.2,
    )
    words = app.topic("quix-words", value_deserializer="string")
    counted = app.topic("quix-counted", value_serializer="string")
    windows = app.dataframe(words).tumbling_window(WINDOW_MS, grace_ms=WINDOW_MS).count()
    windows.current().apply(_line).to_topic(counted)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
