"""No operation of the metastore looks at its arguments again after it began to wait: the caller's own may have changed.

The other contract suites, and tests/metastore, call operations with arguments that change (tests/live_arguments.py);
here the text of each is read, so that an operation without such a call is covered, too.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.live_arguments import JUNK, implementations, spoil_arguments, spoiled

_CONTAINER = re.compile(r"\b(Sequence|Mapping|Set|AbstractSet|Iterable|Collection|list|dict|set)\b")
_Position = tuple[int, int]


def looks_late(operation: Callable[..., Any]) -> set[str]:
    """Return the containers among the arguments that are read after the first await, or by a function in it; one that
    was assigned again before is the operation's own.
    """
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(operation))).body
    assert isinstance(function, ast.AsyncFunctionDef)
    arguments = (*function.args.args, *function.args.kwonlyargs)
    containers = {a.arg for a in arguments if a.annotation and _CONTAINER.search(ast.unparse(a.annotation))}
    waits = [node for node in ast.walk(function) if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)]
    if not waits:
        return set()
    first = min(_end(node) if isinstance(node, ast.Await) else _start(node) for node in waits)
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and _start(node) < first]
    own = {name.id for node in assigned for name in ast.walk(node) if _is(name, ast.Store)}
    inner = {name for node in ast.walk(function) if isinstance(node, ast.Lambda) for name in ast.walk(node)}
    late = {node.id for node in ast.walk(function) if _is(node, ast.Load) and (_start(node) >= first or node in inner)}
    return containers & late - own


def _is(node: ast.AST, context: type[ast.expr_context]) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, context)


def _start(node: Any) -> _Position:
    return node.lineno, node.col_offset


def _end(node: Any) -> _Position:
    return node.end_lineno, node.end_col_offset


def test_no_operation_looks_at_an_argument_after_it_began_to_wait() -> None:
    found = {name: looks_late(inspect.unwrap(found)) for name, found in implementations().items()}
    assert len(found) > 100
    assert {name: late for name, late in found.items() if late} == {}


class _Store:
    """Three operations that keep the caller's own, and one that does not."""

    async def _wait(self, asked: object) -> None:
        raise NotImplementedError

    async def after_its_wait(self, keys: Sequence[int]) -> list[int]:
        await self._wait(len(keys))
        return list(keys)

    async def in_a_function(self, keys: Sequence[int]) -> None:
        await self._wait(lambda: sum(keys))

    async def in_the_loop(self, keys: Mapping[int, int]) -> None:
        for _ in range(2):
            await self._wait(0)
            print(keys)

    async def a_copy(self, keys: Sequence[int]) -> list[int]:
        keys = list(keys)
        await self._wait(0)
        return list(keys)


def test_what_looks_late_is_found() -> None:
    late = {name for name, method in vars(_Store).items() if inspect.isfunction(method) and looks_late(method)}
    assert late == {"after_its_wait", "in_a_function", "in_the_loop"}


class _Keeping:
    """Keeps what it is given."""

    kept: Sequence[int] = ()

    async def keep(self, keys: Sequence[int]) -> None:
        self.kept = keys


async def test_what_is_kept_changes_and_the_callers_own_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    keeping, keys = _Keeping(), [1, 2]
    await spoiled(_Keeping.keep)(keeping, keys)
    assert (keeping.kept, keys) == ([JUNK], [1, 2])
    spoil_arguments(monkeypatch, PostgresMetastore)
    assert all(hasattr(found, "is_spoiled") for found in implementations().values())
