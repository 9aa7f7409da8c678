"""Replace attributes of the product, for a planted bug, and know whether what replaces them was called.

Invariant: a replacement differs from what it replaces. Calls of functions, methods and properties are noticed; a
replaced class, constant or bound method has none that could be.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any
from unittest import mock


class Patch:
    """Replaces attributes until the bug is taken out again."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._names: set[str] = set()
        self._called: set[str] = set()

    def replace(self, owner: Any, name: str, replacement: Any) -> Any:
        """Put `replacement` where `owner.name` is; returns what was there."""
        original = getattr(owner, name)
        named = f"{getattr(owner, '__name__', owner)}.{name}"
        assert replacement is not original, f"the bug patches nothing: {named}"
        noticed = _noticed(replacement, functools.partial(self._called.add, named))
        if noticed is not replacement:
            self._names.add(named)
        self._stack.enter_context(mock.patch.object(owner, name, noticed))
        return original

    def wrap(self, owner: Any, name: str, wrong: Callable[[Any], Any]) -> None:
        """Put there what `wrong` makes of what is there, which is right."""
        self.replace(owner, name, wrong(getattr(owner, name)))

    def never_called(self) -> set[str]:
        """Return what was replaced, if nothing of it was called: a part of a bug may only keep a defence away."""
        return set() if self._called else self._names


Plant = Callable[[Patch], object]
"""Plants a bug."""


def wrapped(owner: Any, name: str, wrong: Callable[[Any], Any]) -> Plant:
    """Return the bug that `wrong` makes of what is right."""
    return lambda patch: patch.wrap(owner, name, wrong)


def _noticed(replacement: Any, note: Callable[[], None]) -> Any:
    """Return what does the same and notes each call; what has no calls, as it is."""
    if isinstance(replacement, staticmethod | classmethod):
        return type(replacement)(_noticed(replacement.__func__, note))
    if isinstance(replacement, property):
        return property(_noticed(replacement.fget, note), _noticed(replacement.fset, note))
    if not isinstance(replacement, FunctionType):
        return replacement

    @functools.wraps(replacement)
    def noticed(*args: Any, **kwargs: Any) -> Any:
        note()
        return replacement(*args, **kwargs)

    @functools.wraps(replacement)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        note()
        return await replacement(*args, **kwargs)

    return awaited if inspect.iscoroutinefunction(replacement) else noticed
