"""Errors as a Spark user should see them: the line that says what to do, without the frames of Headrace.

Place: around the methods that Spark's Python workers call. Spark shows the whole traceback in the failed query.
Invariant: type and text of an error stay; only errors of the tree in storage/errors.py are shortened.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from headrace.config.errors import ConfigError
from headrace.storage.errors import HeadraceError

P = ParamSpec("P")
T = TypeVar("T")


def short_errors(call: Callable[P, T]) -> Callable[P, T]:
    """The call; its errors begin here, and their causes are left out."""

    @functools.wraps(call)
    def shortened(*args: P.args, **more: P.kwargs) -> T:
        try:
            return call(*args, **more)
        except (HeadraceError, ConfigError) as error:
            found = error
        found.__cause__, found.__context__, found.__suppress_context__ = None, None, True
        raise found.with_traceback(None)

    return shortened
