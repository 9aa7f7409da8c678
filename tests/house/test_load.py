"""Each program of load/ is in load/README.md, and is run by a make target, a test, a page or another program."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(load[\w.]*)` \|", re.MULTILINE)


def _programs() -> dict[str, Path]:
    """Return the programs by the name that `python -m` takes."""
    found = {}
    for path in sorted((ROOT / "load").rglob("*.py")):
        if path.name == "__main__.py" or re.search(r'^if __name__ == "__main__":', path.read_text(), re.MULTILINE):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__main__")] = path
    return found


def _readers() -> list[Path]:
    """Return what may run or describe a program."""
    pages = [ROOT / "Makefile", ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    return [*pages, *(ROOT / "tests").rglob("*.py"), *(ROOT / "load").rglob("*.py")]


def test_each_program_is_listed_once() -> None:
    listed = ROW.findall((ROOT / "load" / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(_programs())


def test_each_program_is_run_by_something() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in _readers() if path != Path(__file__)}
    for name, program in _programs().items():
        own = program.parent if program.name == "__main__.py" and program.parent.name != "load" else program
        parent, _, last = name.rpartition(".")
        named = re.compile(
            rf"(?<![\w.])(?:-m {re.escape(name)}(?![\w.]*\w)|\"{re.escape(name)}\"|{re.escape(name)} import"
            rf"|{re.escape(name.replace('.', '/'))}(?:\.py|/)|from {re.escape(parent)} import [^\n]*\b{last}\b)"
        )
        words = name, name.replace(".", "/"), f"from {parent} import"
        used = [
            path
            for path, text in texts.items()
            if any(word in text for word in words) and not path.is_relative_to(own) and named.search(text)
        ]
        # a part of a package may be started by its package
        used += [path for path in program.parent.glob("*.py") if path != program and rf"{last}.py" in texts[path]]
        assert used, f"no make target, test, page or program runs {name}: remove it, or say where it is used"
