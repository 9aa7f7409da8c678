"""An object with some of its calls replaced: a metastore or a bucket that does something else at one of them."""

from __future__ import annotations

from typing import Any

from tests.nouns import NOUNS


class Overlay:
    """Gives the replaced calls, and all others of what is below. A metastore's calls are replaced in their noun."""

    def __init__(self, below: Any, **replaced: Any) -> None:
        self._below = below
        for name, call in replaced.items():
            if hasattr(below, name):
                setattr(self, name, call)
                continue
            noun = next((noun for noun in NOUNS if hasattr(getattr(below, noun, None), name)), None)
            assert noun is not None, f"nothing is replaced: {name}"
            setattr(self, noun, Overlay(getattr(self, noun), **{name: call}))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)
