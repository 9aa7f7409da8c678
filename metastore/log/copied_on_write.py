"""A mapping that shares the one that it is made from until it changes.

Place: replay.py, for the parts of an image: most records change one of them.
Invariant: the base is never changed; without a change `finished` returns it, the same object, so that those who compute
something from it see that nothing changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class CopiedOnWrite(MutableMapping[K, V]):
    """A dictionary that is copied with its first change."""

    def __init__(self, base: Mapping[K, V]) -> None:
        self._held: Mapping[K, V] = base
        self._own: dict[K, V] | None = None

    def finished(self) -> Mapping[K, V]:
        """Return the mapping, which must not change any more."""
        return self._held if self._own is None else MappingProxyType(self._own)

    def keep(self, key: K, value: V, most: int) -> None:
        """Set a value, as the newest of at most `most`: the oldest goes."""
        self[key] = value
        if len(self) > most:
            del self[next(iter(self))]

    def __getitem__(self, key: K) -> V:
        return self._held[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._writable()[key] = value

    def __delitem__(self, key: K) -> None:
        del self._writable()[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def _writable(self) -> dict[K, V]:
        if self._own is None:
            self._held = self._own = dict(self._held)
        return self._own


def set_value(resources: MutableMapping[Any, Mapping[str, Any]], resource: Any, name: str, value: Any) -> None:
    """Set or, with None, take away one value of a resource; a resource without values goes."""
    values = {key: kept for key, kept in resources.get(resource, {}).items() if key != name}
    if value is not None:
        values[name] = value
    resources.pop(resource, None)
    if values:
        resources[resource] = MappingProxyType(values)
