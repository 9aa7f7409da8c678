"""A small file system for the servers of a torture run, which a drill fills up.

Invariant: leaving the context unmounts it. It needs root, mkfs.ext4 and a loop device: `why_missing` says what is not
there; then the run has no full disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

SIZE_BYTES = 3 * 1024**3
"""Size in bytes, for a primary, two standbys, and their logs. The file is sparse."""


def why_missing() -> str:
    """Empty if a small disk can be made here."""
    if os.geteuid() != 0:
        return "only root can mount a small disk"
    if missing := [program for program in ("mkfs.ext4", "mount", "umount") if shutil.which(program) is None]:
        return f"programs are missing: {', '.join(missing)}"
    with tempfile.TemporaryDirectory(prefix="headrace-disk-") as place:
        try:
            with SmallDisk(Path(place), 8 * 1024**2):
                return ""
        except subprocess.CalledProcessError as error:
            return f"no small disk: {error.stderr.decode().strip()}"


class SmallDisk:
    """Mounted at `path`, while the context is entered."""

    def __init__(self, directory: Path, size_bytes: int = SIZE_BYTES) -> None:
        self.path = directory / "disk"
        self._image = directory / "disk.img"
        self._size_bytes = size_bytes
        self._ballast = self.path / "ballast"

    def __enter__(self) -> SmallDisk:
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(self._size_bytes)
        _run("mkfs.ext4", "-q", "-m", "0", str(self._image))
        _run("mount", "-o", "loop", str(self._image), str(self.path))
        self.path.chmod(0o711)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _run("umount", "--lazy", str(self.path))
        self._image.unlink()

    def fill(self) -> None:
        """Take all room that is left."""
        descriptor = os.open(self._ballast, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            step = 64 * 1024**2
            at = 0
            while step >= 4096:
                try:
                    os.posix_fallocate(descriptor, at, step)
                    at += step
                except OSError:  # no room for so much
                    step //= 2
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Give it back."""
        self._ballast.unlink()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
