"""Answers of asynchronous questions for pages, on a separate thread with its own event loop.

Place: under metastore_link.py and table_link.py.
Invariant: an answer is kept for as long as its question says, so readers of the console cost the same as one; an error
is not kept. A page waits for a limited time: then UnavailableError, and the next page waits for the same question.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from headrace.storage.clock import Clock
from headrace.storage.errors import UnavailableError

T = TypeVar("T")
ANSWER_SECONDS = 15.0


class KeptAnswers:
    """Asks one source. `name`: of the source, for errors."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name, self._clock = name, clock
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._kept: dict[str, tuple[float, Future[Any]]] = {}
        self._keeping = threading.Lock()

    def ask(self, name: str, kept_seconds: float, question: Coroutine[Any, Any, T]) -> T:
        """Return the question's answer, or the kept one of that name. Errors of the question; UnavailableError."""
        with self._keeping:
            now = self._clock.monotonic()
            self._kept = {key: kept for key, kept in self._kept.items() if kept[0] > now or not kept[1].done()}
            _, future = self._kept.get(name, (0.0, None))
            if future is None or (future.done() and future.exception() is not None):
                future = asyncio.run_coroutine_threadsafe(question, self._loop)
                self._kept[name] = (now + kept_seconds, future)
            else:
                question.close()
        try:
            answer: T = future.result(ANSWER_SECONDS)
        except TimeoutError as error:
            raise UnavailableError(f"the {self._name} did not answer in {ANSWER_SECONDS:.0f} s") from error
        return answer

    def close(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Do the last thing, and end the thread."""
        if last is not None:
            asyncio.run_coroutine_threadsafe(last, self._loop).result(ANSWER_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_SECONDS)
