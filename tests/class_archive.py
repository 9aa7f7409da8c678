"""Archives of loaded classes (CDS) for the tests' JVMs: a JVM spends most of a short life on loading classes from jars.

Place: for JVMs that tests start in each run, and that end by themselves. The first one that finds no archive makes it
when it ends; later ones map it. It is kept with the tools.
Invariant: an archive is whole, because it gets its name after its JVM has ended. A JVM with other jars ignores it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from functools import cache

from load.tools.installing import TOOLS

QUIET = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr")
"""A JVM that cannot use an archive says nothing, and reads the jars."""


class ClassArchive:
    """The archive of the JVMs called `name` with these flags."""

    def __init__(self, name: str, *parts: str) -> None:
        """`parts`: what else the classes depend on, as versions."""
        digest = hashlib.sha256(repr((_java(), parts)).encode()).hexdigest()[:16]
        self._place = TOOLS / "java" / "archives" / f"{name}-{digest}.jsa"
        self._made = self._place.with_suffix(f".{os.getpid()}")

    @property
    def flags(self) -> Sequence[str]:
        """What makes a JVM use the archive, or make it."""
        if self._place.exists():
            return [*QUIET, f"-XX:SharedArchiveFile={self._place}"]
        self._place.parent.mkdir(parents=True, exist_ok=True)
        return [*QUIET, f"-XX:ArchiveClassesAtExit={self._made}"]

    def keep(self) -> None:
        """Call it after the JVM's end: what it has made is used from now on."""
        if self._made.exists():
            self._made.rename(self._place)


@cache
def _java() -> str:
    """Return the version of the Java on PATH, as it says it."""
    return subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
