"""The shape of the product in figures, each with an alarm: `python -m tests.house.structure`.

Place: part of `make check`. docs/decisions/0108 says what the figures are for; the calls of one request are counted by
tests/agent/serve/test_request_path.py, because that needs an agent.

An alarm is no goal: it is a little above what the product has. Who needs more says in the decision why.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES: tuple[str, ...] = (
    "agent",
    "cli",
    "client",
    "compactor",
    "config",
    "jobs",
    "metastore",
    "protocol",
    "scan",
    "spark",
)
PACKAGES += ("storage", "tables")
LONG_LIST = 8

ALARMS = {
    "modules": 740,
    "modules with one importer, in their own folder": 84,
    "functions with eight or more parameters": 9,
    "lines of imports, per cent": 10.0,
}


def _modules() -> dict[str, Path]:
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py")
    return {f"headrace.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}": path for path in found}


def _imported(tree: ast.Module, modules: Mapping[str, object]) -> Iterator[str]:
    """Yield the modules of the product that this one imports, anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from {node.module, *(f"{node.module}.{each.name}" for each in node.names)} & modules.keys()


def _has_long_list(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"])) >= LONG_LIST


def measure() -> dict[str, float]:
    """Return the figures, by the names of ALARMS."""
    modules = _modules()
    importers: dict[str, set[str]] = {name: set() for name in modules}
    lines = lines_of_imports = long_lists = 0
    for name, path in modules.items():
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        lines += source.count("\n")
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                lines_of_imports += (node.end_lineno or node.lineno) - node.lineno + 1
            long_lists += _has_long_list(node)
        for other in _imported(tree, modules):
            importers[other].add(name)
    alone = [name for name, by in importers.items() if len(by) == 1 and modules[min(by)].parent == modules[name].parent]
    return dict(zip(ALARMS, (len(modules), len(alone), long_lists, 100 * lines_of_imports / lines), strict=True))


def main() -> int:
    """Print the figures; 1 if one is above its alarm."""
    figures = measure()
    print("; ".join(f"{name}: {figures[name]:.4g} (alarm at {most:g})" for name, most in ALARMS.items()))
    return int(any(figures[name] > most for name, most in ALARMS.items()))


if __name__ == "__main__":
    sys.exit(main())
