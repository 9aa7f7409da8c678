"""Errors as a Spark user should see them: the line that says what to do, without the frames of Headrace.

Place: `short_errors` around the methods that Spark's Python workers call, as Spark shows the whole traceback in the
failed query; `errors_of_tasks` in a driver, around its calls of Spark.
Invariant: type and text of an error of the tree in storage/errors.py stay; only such errors are shortened.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from headrace.config.errors import ConfigError
from headrace.storage.errors import HeadraceError, UnavailableError

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


@contextmanager
def errors_of_tasks() -> Iterator[None]:
    """Turn errors of Spark into UnavailableError: the next attempt starts the tasks again."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        raise UnavailableError(f"a task of Spark failed: {type(error).__name__}: {str(error)[:2_000]}") from error
