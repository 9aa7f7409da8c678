"""Replace attributes of the product, for a planted bug."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock


class Patch:
    """Replaces attributes until the bug is taken out again."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack

    def replace(self, owner: Any, name: str, replacement: Any) -> Any:
        """Put `replacement` where `owner.name` is; returns what was there."""
        original = getattr(owner, name)
        self._stack.enter_context(mock.patch.object(owner, name, replacement))
        return original
