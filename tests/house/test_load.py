"""load/ holds workloads and benchmarks: each module is reached from a command or a test, and its page lists them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from load.__main__ import BENCH, NAMES

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(\w+)` \| (.*) \|$", re.MULTILINE)
STARTED = re.compile(r"\bload(?:\.\w+)+")
"""A module's name in a string: of a child process."""


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for path in sorted((ROOT / "load").rglob("*.py"))}


@cache
def _used_by(path: Path) -> frozenset[str]:
    """Return the modules of load/ that a file imports or starts as a process."""
    source = path.read_text(encoding="utf-8")
    if re.search(r"\bload\b", source) is None:
        return frozenset()  # most of them; parsing takes the test's time
    return frozenset(found for found in _names(ast.parse(source)) if found in MODULES)


def _names(tree: ast.Module) -> Iterator[str]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    texts = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and _has_text(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            yield from STARTED.findall(node.value)


def _has_text(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return bool(node.body) and isinstance(node.body[0], ast.Expr)


def _measures(name: str) -> str:
    """Return the first argument of a module's BENCHMARK."""
    tree = ast.parse(MODULES[f"load.benchmarks.{name}"].read_text(encoding="utf-8"))
    calls = [node.value for node in tree.body if isinstance(node, ast.Assign) and _is_declaration(node)]
    (call,) = calls
    assert isinstance(call, ast.Call)
    assert isinstance(call.args[0], ast.Constant)
    return str(call.args[0].value)


def _is_declaration(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "BENCHMARK" for target in node.targets)


def test_each_module_is_reached_from_a_command_or_a_test() -> None:
    """A mention on a page is no use."""
    commands = {"load.__main__", "load.demo.__main__", *(f"load.benchmarks.{name}" for name in NAMES)}
    tests = set[str]().union(*(_used_by(path) for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)))
    reached, left = set[str](), commands | tests
    while left:
        module = left.pop()
        reached.add(module)
        left |= _used_by(MODULES[module]) - reached
    folders = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    assert set(MODULES) - reached - folders == set(), "no command and no test runs it: remove it"


def test_the_page_lists_each_benchmark_once_and_says_what_it_measures() -> None:
    listed = ROW.findall((ROOT / "load" / "README.md").read_text(encoding="utf-8"))
    rest = [name for name in NAMES if name not in BENCH]
    assert listed == [(name, _measures(name)) for name in (*BENCH, *rest)]


def test_only_the_harness_parses_and_only_children_are_programs() -> None:
    """A benchmark has no main, no parser and no printing."""
    for name in NAMES:
        source = MODULES[f"load.benchmarks.{name}"].read_text(encoding="utf-8")
        for word in ("__main__", "ArgumentParser(", "parse_args(", "print("):
            assert word not in source, f"{word} in load/benchmarks/{name}.py"
