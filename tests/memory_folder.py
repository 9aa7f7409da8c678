"""Put the tests' files in their place: a folder in memory, if the machine has room for it.

Each test copies a database of hundreds of files and drops it again. A disk's file system spends more time on these than
Postgres does: on ext4 a third of the time of the metastore's tests. HEADRACE_TEST_FOLDER names another folder, which is
kept; TMPDIR is used where there is too little memory.
Invariant: the folder is removed at the end of the run, and at the start of the next one if the run was killed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
PREFIX = "headrace-tests-"
FREE_BYTES_MIN = 6 << 30
"""A run uses up to two, and the processes under test need memory, too."""


def use_memory_folder() -> Path | None:
    """Make the folder of this run the one of all temporary files, here and in child processes; None without room."""
    named = os.environ.get("HEADRACE_TEST_FOLDER")
    if named is None and not _has_room():
        return None
    folder = Path(named) if named else MEMORY / f"{PREFIX}{os.getpid()}"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o711)  # started by root, Postgres runs as another user and must get through
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    return None if named else folder


def remove_leftovers() -> None:
    """Remove the folders of runs that are over."""
    for folder in MEMORY.glob(f"{PREFIX}*"):
        number = folder.name.removeprefix(PREFIX)
        if number.isdecimal() and not Path("/proc", number).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _has_room() -> bool:
    if not os.access(MEMORY, os.W_OK):
        return False
    return min(shutil.disk_usage(MEMORY).free, _available_bytes()) >= FREE_BYTES_MIN


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    return 0
