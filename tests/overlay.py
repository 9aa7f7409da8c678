"""An object with some of its calls replaced: a metastore or a bucket that does something else at one of them."""

from __future__ import annotations

from typing import Any


class Overlay:
    """Gives the replaced calls, and all others of what is below."""

    def __init__(self, below: Any, **replaced: Any) -> None:
        self._below = below
        for name, call in replaced.items():
            assert hasattr(below, name), f"nothing is replaced: {name}"
            setattr(self, name, call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)
