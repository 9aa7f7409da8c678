"""Find where the code can wait: every `await` of the paths under test, and those at which a task waits now.

Invariant: a site is (file, function, number of the await in the function), so that it survives moved lines.
"""

from __future__ import annotations

import ast
import asyncio
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import headrace

PACKAGE = Path(headrace.__file__).parent
"""The package: in a checkout, a folder of links to the packages' folders."""
FOLDERS = {path.resolve(): path.name for path in PACKAGE.iterdir() if path.is_dir()}


class Site(NamedTuple):
    file: str
    function: str
    await_number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.function}#{self.await_number}"


@functools.cache
def sites_of(file: str) -> dict[Site, range]:
    """Every await, async with and async for of a file, and its lines."""
    found: dict[Site, range] = {}
    for name, function in _functions(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))):
        waits = [node for node in _own_nodes(function) if isinstance(node, ast.Await | ast.AsyncWith | ast.AsyncFor)]
        for number, node in enumerate(sorted(waits, key=lambda node: (node.lineno, node.col_offset)), start=1):
            found[Site(file, name, number)] = _lines(node)
    return found


def standing(tasks: set[asyncio.Task[Any]]) -> set[Site]:
    """The sites at which these tasks are suspended, innermost and those that wait for them."""
    return {site for task in tasks for frame in _frames(task.get_coro()) for site in _site(*frame)}


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{node.name}"
            if isinstance(node, ast.AsyncFunctionDef):
                yield name, node
            yield from _functions(node, f"{name}.")


def _own_nodes(function: ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes without those of functions inside it."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            left += ast.iter_child_nodes(node)


def _lines(node: ast.Await | ast.AsyncWith | ast.AsyncFor) -> range:
    """Return the head of a block: awaits inside it are separate sites."""
    if isinstance(node, ast.Await):
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(node.lineno, node.body[0].lineno)


def _frames(coroutine: Any) -> Iterator[tuple[str, str, int]]:
    """(file, qualified name, line) of a suspended coroutine and what it awaits, outermost first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None and (name := _name_in_package(frame.f_code.co_filename)) is not None:
            yield name, frame.f_code.co_qualname, frame.f_lineno
        coroutine = getattr(coroutine, "cr_await", None)


@functools.cache
def _name_in_package(file: str) -> str | None:
    """agent/... for src/headrace/agent/... and for what that links to; None for code of others and of tests."""
    path = Path(file).resolve()
    for folder, name in FOLDERS.items():
        if path.is_relative_to(folder):
            return str(name / path.relative_to(folder))
    return None


def _site(file: str, function: str, line: int) -> Iterator[Site]:
    name = function.replace(".<locals>", "")
    for site, lines in sites_of(file).items():
        if site.function == name and line in lines:
            yield site
