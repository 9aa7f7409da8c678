"""Words that make a sentence hard to read, counted in documents and code: `python -m tests.house.words`.

Place: part of `make check`. It reads documents, comments, docstrings, string literals (messages and
help texts) and the names of tests; identifiers and the frozen migrations are left out. Each folder
has an allowance in words.toml; a folder above its allowance fails the check.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALLOWANCES = Path(__file__).with_name("words.toml")
READ = ("*.md", "*.py", "*.sql", "*.toml", "*.yaml", "*.cjs", "*.sh", "Makefile")
FROZEN = ("migrations/", "requirements/", "tests/golden/", "tests/house/words", "tests/house/test_words")

# What is written -> what is easier to read.
WORDS = {
    r"who(so)?(m)?ever": "the caller, the client, any process that",
    r"whatever": "any, all, everything that",
    r"nobody|no-one|no one": "no client, no agent, nothing",
    r"(some|any)body|(some|any)one": "a client, another process, an operator",
    r"everybody|everyone": "all clients, all agents",
    r"anew": "again",
    r"whose": "of which, with: `a file whose rows are deleted` -> `a file with deleted rows`",
    r"where(in|of|by|upon)|there(of|in|by|upon|after)|thence|whence|hence(forth)?": "of it, in it, from there",
    r"lest|ere|nought|naught|albeit|withal": "so that ... not, before, nothing, although",
    r"stands?|stood|standing": "is, runs, exists, remains",
    r"lives|lived|living|outlives?|outlived": "is running, is stored in, lasts longer than",
    r"die|dies|died|dying|born|farewell": "crashes, ends, expires, is deleted; is created, starts",
    r"(is|are|was|were|be|been|being|gets?) told": "receives, is informed, the response says",
    r"of (its|their|his|her|our|your) own": "separate, own: `a file of its own` -> `a separate file`",
    r"for ?ever|once and for all|for good": "permanently, without limit, never ... again",
    r"at rest": "idle, unchanged",
    r"lets? go": "release, give up",
    r"rules? over|goes by": "overrides, depends on",
    r"in hand": "in progress",
    r"nothing but|as it were|so to speak|or other": "only",
    r"likewise|alike": "also, in the same way, both",
    r"lies?|lay|lain": "is, is stored",
    r"beside": "next to, in the same process as, with",
    r"strangers?": "unauthorized clients",
}
_ANY = re.compile(rf"(?<![-\w])(?<!allow\.)(?:{'|'.join(WORDS)})(?![-\w])", re.IGNORECASE)


_REPLACED = re.compile(r"\{[^{}\n]*\}")
"""A replacement field of an f-string: code, not prose. (Python 3.12 and newer split them off.)"""


@dataclass(frozen=True, slots=True)
class Occurrence:
    path: str
    line: int
    word: str
    text: str


_PIECE = re.compile(
    r"""(?P<comment>\#[^\n]*)
    | (?P<string>(?:(?<!\w)[rbuf]{1,2})?(?:
        \"{3}(?:\\.|[^\\])*?\"{3} | '{3}(?:\\.|[^\\])*?'{3} | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
      ))
    | \bdef\s+(?P<test>test_\w+)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
"""The pieces of a Python file that may be English, as tokenize finds them, in a quarter of its time."""


@lru_cache(maxsize=1)
def prose(path: str, source: str) -> list[tuple[int, str]]:
    """(line number, text) of everything in a file that is English."""
    if not path.endswith(".py"):
        return list(enumerate(source.splitlines(), start=1))
    found: list[tuple[int, str]] = []
    line, counted = 1, 0
    for piece in _PIECE.finditer(source):
        line, counted = line + source.count("\n", counted, piece.start()), piece.start()
        if piece["test"]:
            found.append((line, piece["test"].replace("_", " ")))
            continue
        text = _REPLACED.sub("", piece[0]) if piece[0].startswith(("f", "rf")) else piece[0]
        if " " in text.strip("\"'"):  # a single word is data: a name, a key
            found += [(line + number, part) for number, part in enumerate(text.splitlines())]
    return found


def occurrences(path: str, text: str, searched: re.Pattern[str] = _ANY) -> Iterator[Occurrence]:
    """Find each word or phrase, also a phrase that a line break cuts in two."""
    lines = prose(path, text)
    joined = ""
    starts: list[int] = []
    for _, part in lines:
        starts.append(len(joined))
        joined += re.sub(r"^\s*(#|--|//)?\s*", "", part) + " "
    row = 0
    for match in searched.finditer(joined):
        while row + 1 < len(starts) and starts[row + 1] <= match.start():
            row += 1
        yield Occurrence(path, lines[row][0], match.group().lower(), lines[row][1].strip())


def sources() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *READ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return sorted({name for name in listed if not name.startswith(FROZEN) and (ROOT / name).is_file()})


def folder_of(path: str, folders: list[str]) -> str:
    """The longest folder in words.toml that the file is in; "" is everything else."""
    return max((f for f in folders if path == f or path.startswith(f + "/")), key=len, default="")


def _lowered(page: str, found: dict[str, list[Occurrence]]) -> str:
    """words.toml with each allowance at most the count; comments and folders at zero stay."""

    def lower(match: re.Match[str]) -> str:
        return f'"{match[1]}" = {min(int(match[2]), len(found[match[1]]))}'

    return re.sub(r'^"([^"]+)" = (\d+)', lower, page, flags=re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.house.words", description=__doc__.split("\n")[0])
    parser.add_argument("--every", action="store_true", help="print each occurrence")
    parser.add_argument("--table", action="store_true", help="print counts and occurrences per 10,000 lines")
    parser.add_argument("--lower", action="store_true", help="lower each allowance to today's count")
    parser.add_argument("paths", nargs="*", help="only files whose path starts with one of these")
    options = parser.parse_args()
    allowed: dict[str, int] = tomllib.loads(ALLOWANCES.read_text(encoding="utf-8"))["allowed"]
    found: dict[str, list[Occurrence]] = {folder: [] for folder in ["", *allowed]}
    lines: Counter[str] = Counter()
    for path in sources():
        if options.paths and not path.startswith(tuple(options.paths)):
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        folder = folder_of(path, list(allowed))
        found[folder] += occurrences(path, text)
        lines[folder] += text.count("\n")
    if options.table:
        for folder, each in sorted(found.items()):
            print(f"{folder or '(the rest)':<28}{len(each):>6}{1e4 * len(each) / max(lines[folder], 1):>8.1f}")
        total = sum(map(len, found.values()))
        print(f"{'all':<28}{total:>6}{1e4 * total / sum(lines.values()):>8.1f} per 10,000 lines")
    over = [folder for folder, each in found.items() if len(each) > allowed.get(folder, 0)]
    for folder, each in found.items():
        if options.every or folder in over:
            for one in each:
                print(f"{one.path}:{one.line}: {one.word}: {one.text}")
    for folder in over:
        print(f"{folder or 'outside these folders'}: {len(found[folder])} hard words, {allowed.get(folder, 0)} allowed")
    if options.lower:
        ALLOWANCES.write_text(_lowered(ALLOWANCES.read_text(encoding="utf-8"), found), encoding="utf-8")
    if over:
        print("say it in plain words: who does what, in the present tense (tests/house/words.py has suggestions)")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
