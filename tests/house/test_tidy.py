"""Style made executable: sizes, openings, names, dead files, clocks."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "agent", "cli", "client", "compactor", "config", "jobs", "metastore", "migrations", "protocol", "scan", "spark",
    "storage", "tables",
)  # fmt: skip
FILE_LINES_MAX = 400
LONG_FILES = {
    "agent/listener/connection.py",
    "config/settings.py",
    "tests/agent/topics/test_configs.py",
    "tests/agent/fetch/fetch_world.py",
    "tests/agent/access/test_sasl.py",
    "tests/compactor/test_segments.py",
    "tests/contracts/test_cluster_contract.py",
    "tests/model/metastore_model.py",
    "tests/simulation/transactions.py",
}
"""Longer than that: each is about one part. No file joins them."""
FUNCTION_LINES_MAX = 70
FORBIDDEN_MODULE_NAMES = {"utils", "util", "common", "helpers", "core", "misc", "base"}
# Decisions must not read a clock or a random source directly (storage/clock.py).
CLOCK_CALLS = re.compile(
    r"\b(time\.(time|time_ns|monotonic|sleep)|datetime\.now|datetime\.utcnow|random\.(random|randint|choice|uniform))\("
)
CLOCK_ALLOWED = {"storage/clock.py", "metastore/postgres/embedded.py"}


def _sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [ROOT / name for name in listed if (ROOT / name).exists()]


SOURCES = _sources()
PRODUCT = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in PACKAGES]


class Facts(NamedTuple):
    """What the tests ask of a module; kept instead of its tree, which is large."""

    has_docstring: bool
    long_functions: Sequence[str]
    public_classes: Sequence[str]
    public_names: Sequence[str]


@functools.cache
def _facts(path: Path) -> Facts:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    long = []
    for node in _statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                long.append(f"{_name(path)}:{node.lineno} {node.name} ({lines})")
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return Facts(
        bool(ast.get_docstring(tree)),
        long,
        [name for name in classes if not name.startswith("_")],
        [name for name in _names(tree) if not name.startswith("_")],
    )


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Statements at any depth. Expressions, which are most of a tree, have no functions but lambdas."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, field, ())
        for child in inner if isinstance(inner, list) else ():
            yield child
            yield from _statements(child)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_sources_were_found() -> None:
    assert len(PRODUCT) > 30


def test_files_stay_short() -> None:
    long = {_name(p): n for p in SOURCES if (n := len(p.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX}
    assert long.keys() <= LONG_FILES, f"over {FILE_LINES_MAX} lines; split along the path they are on: {long}"
    assert long.keys() >= LONG_FILES, "short enough by now: take them out of LONG_FILES"


def test_functions_fit_a_screen() -> None:
    long = [function for path in SOURCES for function in _facts(path).long_functions]
    assert not long, long


def test_every_module_opens_with_its_purpose() -> None:
    bare = [_name(p) for p in SOURCES if p.read_text(encoding="utf-8").strip() and not _facts(p).has_docstring]
    assert not bare, bare


def test_no_module_is_a_drawer_for_leftovers() -> None:
    assert not [_name(p) for p in PRODUCT if p.stem in FORBIDDEN_MODULE_NAMES]


def test_time_is_injected() -> None:
    guilty = [
        f"{_name(path)}:{number}"
        for path in PRODUCT
        if _name(path) not in CLOCK_ALLOWED
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if CLOCK_CALLS.search(line)
    ]
    assert not guilty, f"take a Clock or a random.Random instead: {guilty}"


def test_no_cancellation_is_lost() -> None:
    """With Python 3.11 asyncio.wait_for loses one that comes in the turn in which its wait ends."""
    guilty = [_name(path) for path in PRODUCT if "asyncio.wait_for(" in path.read_text(encoding="utf-8")]
    assert not guilty, f"take asyncio.timeout instead: {guilty}"


def test_sql_files_open_with_their_contract() -> None:
    files = sorted((ROOT / "metastore").rglob("*.sql"))
    assert files
    bare = [_name(p) for p in files if not p.read_text(encoding="utf-8").lstrip().startswith("--")]
    assert not bare, f"open with locks, idempotence and cost: {bare}"


def test_public_classes_have_distinct_names() -> None:
    found: dict[str, list[str]] = {}
    for path in SOURCES:
        if path in PRODUCT or path.relative_to(ROOT).parts[0] == "load":
            for name in _facts(path).public_classes:
                found.setdefault(name, []).append(_name(path))
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}


CALLED_FROM_OUTSIDE = {"buffer_updated", "get_buffer", "connection_made", "connection_lost", "pause_writing"} | {
    "resume_writing", "data_received",  # with the five before them, asyncio's callbacks
    "dump",  # psycopg's
    "main_loop",  # uvicorn's
    "formatTime",  # logging's
    "ignore_aliases",  # PyYAML's
    "list_agent_leases",  # by name, as all of queries.py; the others have a method of the same name
    "build_request_header", "parse_response_header",  # aiokafka's
} | {  # PySpark's data source API
    "getDefaultReadLimit", "initialOffset", "latestOffset", "prepareForTriggerAvailableNow", "reportLatestOffset",
    "streamReader",
    "streamWriter",
}  # fmt: skip
UNUSED_BUT_KEPT = {
    "send_and_wait": "for applications",
    "NO_BROKER": "what remote_segments holds for workers",
    "segment_at": "a part of Projection",
    "tombstones_after": "a part of Projection",
    "record_types": "tests go through all records of the metadata log",
    "write_bound": "the property tests hold the policy to it",
    **dict.fromkeys(
        ("PartitionMerge", "PartitionSplit", "apply_change", "may_show", "to_child", "to_parent"),
        "the rules that SQL and clients carry out; tests/key_order and properties hold them to the order per key",
    ),
}


def _names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        yield from (target.id for target in targets if isinstance(target, ast.Name))


TOKEN = re.compile(
    r"""\#[^\n]*
    | (?P<prefix>\b[bBfFrRuU]{1,2})?
      (?P<string>\"\"\"(?:\\.|[^\\])*?\"\"\" | '''(?:\\.|[^\\])*?''' | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*')
    | (?P<name>[^\W\d]\w*)
    | \w+""",
    re.DOTALL | re.VERBOSE,
)
"""A comment, a string, a name or a number. The module tokenize takes ten times as long."""


def _words(source: str) -> Iterator[str]:
    """Yield names in code, also in f-strings."""
    for token in TOKEN.finditer(source):
        if token["name"]:
            yield token["name"]
        elif token["string"] and set(token["prefix"] or "") & set("fFrR"):
            yield from re.findall(r"\w+", token["string"])


def test_comments_and_strings_have_no_names() -> None:
    source = [
        "a = b.c  # d 'e",
        'x = f\'{g} h\' + rb"i" + "j # "',
        "'''k",
        'l\'\'\' + """m " n \\"""" + \'o \\\' p\'',
        "elif_ = 1e5 + 0x1f + 10_000",
    ]
    assert list(_words("\n".join(source))) == ["a", "b", "c", "x", "g", "h", "i", "elif_"]


def test_public_names_are_used() -> None:
    """In product or load: a name that only tests use is an explicit exception."""
    defined: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for path in SOURCES:
        top, source = path.relative_to(ROOT).parts[0], path.read_text(encoding="utf-8")
        if path in PRODUCT or top == "load":
            used.update(_words(source))
        if path in PRODUCT:
            defined.update(_facts(path).public_names)
    unused = {name for name, count in defined.items() if used[name] <= count} - CALLED_FROM_OUTSIDE
    assert unused == set(UNUSED_BUT_KEPT), "use or remove it; what is used again leaves the list"


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX"])
def test_nothing_is_left_for_later_in_a_comment(word: str) -> None:
    pattern = re.compile(rf"#.*\b{word}\b")
    assert not [_name(p) for p in PRODUCT if pattern.search(p.read_text(encoding="utf-8"))]
