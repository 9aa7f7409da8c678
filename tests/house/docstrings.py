"""How docstrings begin, cut sentences and mannered turns, measured: `python -m tests.house.docstrings [PATH ...]`.

Place: part of `make check`, next to tests/house/words.py, which has the list of hard words.

**Fragments.** A docstring (of a module, class or function, and the text below a constant or field) says what the thing
does or is: it begins with a verb ("Return") or a noun phrase ("The lease of a job"). A *fragment* begins with a
preposition, a conjunction or a question word of PREPOSITIONS: "Of the listeners", "By node id", "None if it was lost".
In a function's docstring a clause with "What", "How", "Why" or "Whether" is a fragment, too, because the verb is
missing ("Return whether"); a property, a class, a field and a module may have it as a noun phrase. The name of a test
is a sentence, so its docstring may begin with the condition ("Below the initial count"). "The handler." of a class and
the like are EMPTY. The figure is the share of all docstrings in per cent, with an alarm at FRAGMENTS_MAX.

**Cut sentences.** A paragraph of a docstring that has no punctuation mark at its end, with a lower-case word at the
beginning of the next paragraph, is one sentence that an empty line cuts in two. None is allowed; a block that is
indented (commands, a table) does not count.

**Mannered turns.** The figure is the number of matches of TURNS in everything that is English (documents, comments,
docstrings, messages; what words.py reads), per 10,000 lines of these files, with an alarm at TURNS_MAX.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.house import words

ROOT = Path(__file__).resolve().parents[2]
FRAGMENTS_MAX = 1.0
TURNS_MAX = 8.0

PREPOSITIONS = (
    *("of", "by", "as", "from", "for", "at", "in", "with", "without", "up", "until", "till", "on", "to", "per"),
    *("between", "below", "above", "beside", "under", "over", "within", "through", "during", "since", "because"),
    *("if", "unless", "when", "where", "which", "who", "whose", "though", "although", "so", "than", "and", "or", "but"),
)
CLAUSES = ("what", "how", "why", "whether")
EMPTY = re.compile(r"(the|a|an) (handler|class|function|method|value|result)\.?$", re.IGNORECASE)
_CUT = re.compile(r"[^\s.?!:|`]\n[ \t]*\n(?=[a-z])(?!\w+\.\w)")
"""The second part does not look like code (`frame.write`)."""
_FRAGMENT = re.compile(rf"({'|'.join(PREPOSITIONS)}|none (if|when|for|while|until))\b", re.IGNORECASE)
_CLAUSE = re.compile(rf"({'|'.join(CLAUSES)})\b", re.IGNORECASE)

# What is written -> what is easier to read.
TURNS = {
    r"go(es)? on|went on|going on": "continue",
    r"(is|are|was|were|be|been) told( of)?|tell (it|them) of": "receive, learn; the response says",
    r"so (many|much|long|often|far)( at once)?:": "write the number first",
    r"(no|the) time to (look|ask)": "it is too early to check",
    r"heard? of|hears of": "receive, read",
    r"as it (comes|came)": "unchanged",
    r"in vain": "without success",
    r"(is|are|was|were) (no )?use\b": "is useful, is not useful",
    r"no (harm|more) (is|was) done|does no harm": "is safe",
    r"comes? to nothing": "fails",
    r"by hand": "manually",
    r"a word\b": "a message",
}
_TURN = re.compile(rf"(?<![-\w])(?:{'|'.join(TURNS)})(?![-\w])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Docstring:
    path: str
    line: int
    kind: str
    name: str
    text: str

    @property
    def fragment(self) -> bool:
        """Whether it does not begin with a verb or a noun phrase."""
        if EMPTY.match(self.text) or (_FRAGMENT.match(self.text) and not self.name.startswith("test_")):
            return True
        return self.kind == "function" and bool(_CLAUSE.match(self.text))

    @property
    def is_cut(self) -> bool:
        """Whether an empty line cuts a sentence of it in two."""
        text = self.text if self.kind == "module" else inspect.cleandoc(self.text)
        return _CUT.search(text) is not None


def _text(node: ast.stmt) -> str | None:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text.strip()
    return None


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Return a module's statements, those inside others too, but no expressions: they are nine tenths of a tree."""
    yield node
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, field, ()):
            yield from _statements(inner)


def docstrings(path: str, source: str) -> Iterator[Docstring]:
    """Find the docstrings of a Python file."""
    for node in _statements(ast.parse(source)):
        match node:
            case ast.Module(body=[first, *_]) if text := _text(first):
                yield Docstring(path, first.lineno, "module", path, text)
            case ast.ClassDef(name=name, body=[first, *_]) if text := _text(first):
                yield Docstring(path, first.lineno, "class", name, text)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if text := _text(node.body[0]):
                marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
                kind = "property" if marks & {"property", "cached_property"} else "function"
                yield Docstring(path, node.body[0].lineno, kind, name, text)
        if isinstance(node, ast.Module | ast.ClassDef):
            for before, after in zip(node.body, node.body[1:], strict=False):
                if isinstance(before, ast.Assign | ast.AnnAssign) and (text := _text(after)):
                    yield Docstring(path, after.lineno, "field", ast.unparse(before).split("=")[0].strip(), text)


def turns(path: str, source: str) -> Iterator[words.Occurrence]:
    """Find the mannered turns of a file."""
    return words.occurrences(path, source, _TURN)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.house.docstrings", description=__doc__.split("\n")[0])
    parser.add_argument("--every", action="store_true", help="print each fragment and each turn")
    parser.add_argument("paths", nargs="*", help="only files with a path that starts so")
    options = parser.parse_args()
    found: list[Docstring] = []
    mannered: list[words.Occurrence] = []
    lines = 0
    for path in words.sources():
        if options.paths and not path.startswith(tuple(options.paths)):
            continue
        source = (ROOT / path).read_text(encoding="utf-8")
        lines += source.count("\n")
        mannered += turns(path, source)
        if path.endswith(".py"):
            found += docstrings(path, source)
    fragments, cut = [one for one in found if one.fragment], [one for one in found if one.is_cut]
    share = 100 * len(fragments) / max(len(found), 1)
    rate = 1e4 * len(mannered) / max(lines, 1)
    over = share > FRAGMENTS_MAX, rate > TURNS_MAX, bool(cut)
    for one in fragments if options.every or over[0] else []:
        print(f"{one.path}:{one.line}: {one.kind} {one.name}: {one.text.splitlines()[0]}")
    for one in cut:
        print(f"{one.path}:{one.line}: {one.kind} {one.name}: an empty line cuts a sentence in two")
    for turn in mannered if options.every or over[1] else []:
        print(f"{turn.path}:{turn.line}: {turn.word}: {turn.text}")
    print(f"docstrings: {len(fragments)} of {len(found)} are fragments, {share:.2f} % (alarm at {FRAGMENTS_MAX:g} %)")
    print(f"mannered turns: {len(mannered)}, {rate:.1f} per 10,000 lines (alarm at {TURNS_MAX:g})")
    if any(over):
        print("begin with a verb or a noun phrase, and write plain sentences (tests/house/docstrings.py)")
    return int(any(over))


if __name__ == "__main__":
    sys.exit(main())
