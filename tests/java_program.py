"""Runs the tests' Java programs from compiled classes: compiling takes longer than most of them run.

Invariant: a program is compiled once for what its source says, also if two test processes need it at the same time.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from load.tools import TOOLS

FLAGS = ("-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For programs that run for a few seconds."""


def java_command(source: Path, class_path: str, *flags: str, parts: Sequence[Path] = ()) -> list[str]:
    """The command that runs the class that `source` is named after; arguments come after it. `parts`: other sources
    that it uses.
    """
    return ["java", *FLAGS, *flags, "-cp", f"{_classes([source, *parts], class_path)}:{class_path}", source.stem]


def _classes(sources: Sequence[Path], class_path: str) -> Path:
    source = sources[0]
    content = b"".join(path.read_bytes() for path in sources)
    digest = hashlib.sha256(content + class_path.encode()).hexdigest()[:16]
    place = TOOLS / "java" / "programs" / f"{source.stem}-{digest}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(prefix=place.name, dir=place.parent)
        subprocess.run(["javac", "-d", made, "-cp", class_path, *map(str, sources)], check=True)
        try:
            os.rename(made, place)
        except OSError:
            if not place.is_dir():
                raise
    return place
