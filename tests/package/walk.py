"""Walk the commands of docs/start and docs/operate, each page in a new cluster: `python -m tests.package.walk [PAGE]`.

Place: test_pages_walked.py runs it in `make test-all`; test_instructions.py parses the lines of the START
pages and runs README's.
Invariant: each unit of a page is run as it is written, or page_lists.py says why not. What a reader has to replace (an
address, a folder, "…") is replaced by a place that exists, nothing else. Variables and the folder stay from one to the
next. The report names what was run, and each unit that was not, with its reason.
`--list` says without a cluster what would be run, what is not and why, and what the lists lack.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.metastore.postgres.installation import Installation, installations
from tests.package.distribution import WHEEL, DevPlaces, Environment, beside_this_environment, build
from tests.package.instructions import with_places
from tests.package.page_blocks import command_blocks, pages
from tests.package.page_lists import LISTS, of_page, prune, stale, unknown, why_not

SECONDS_MAX = 900
READY = "ready "


@dataclass(slots=True)
class Walked:
    """What became of the units of one page."""

    page: Path
    run: list[str] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """(unit, reason)."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """(unit, the end of its output)."""

    def __str__(self) -> str:
        lines = [f"{self.page.name}: {len(self.run)} run, {len(self.left_out)} not run, {len(self.failed)} failed"]
        lines += [f"  not run  {_first(unit)}: {reason}" for unit, reason in self.left_out]
        lines += [f"  FAILED   {unit}\n{output}" for unit, output in self.failed]
        return "\n".join(lines)


def sorted_units(page: Path) -> tuple[Walked, list[str]]:
    """What is left out of a page, with the reasons, and what is to be run."""
    units = [unit for block in command_blocks(page) for unit in block.units]
    left_out = [(unit, why_not(page, unit)) for unit in units if why_not(page, unit)]
    return Walked(page, left_out=left_out), [unit for unit in units if not why_not(page, unit)]


def walk(page: Path, environment: Environment, folder: Path) -> Walked:
    """Run the units of a page in a new cluster; the commands after one that failed are run, too."""
    walked, to_run = sorted_units(page)
    if not to_run:
        return walked
    with environment.dev(folder, *of_page(page).get("dev", ())) as places:
        shell = _Shell(environment, places, folder)
        for unit in (*of_page(page).get("given", ()), *to_run):
            status, output = shell.run(unit)
            if status:
                walked.failed.append((unit, output[-2_000:]))
            elif unit in to_run:
                walked.run.append(unit)
    return walked


class _Shell:
    """A terminal of a reader: variables and the folder stay from one command to the next."""

    def __init__(self, environment: Environment, places: DevPlaces, folder: Path) -> None:
        self._folder = folder / "reader"
        self._folder.mkdir()
        (self._folder / "headrace.properties").write_text(
            f"metastore.url={places.metastore}\nbucket={places.bucket}\n", encoding="utf-8"
        )
        self._state = folder / "state"
        self._state.write_text(f"cd {self._folder}\n")
        programs = [str(environment.place / "bin"), *(str(found.bin_dir) for found in _wheels_postgres())]
        path = os.pathsep.join((*programs, os.environ["PATH"]))
        self._environ = {"PATH": path, "HOME": str(folder), "HEADRACE_BOOTSTRAP_SERVER": places.bootstrap}
        metastore = f"'{places.metastore}'"
        self._places = {
            "127.0.0.1:9092": places.bootstrap,
            "kafka-1:9092": places.bootstrap,
            "s3://logs/headrace": places.bucket,
            "s3://lake": (folder / "lake").as_uri(),
            "/backups/": f"{self._folder}/",
            "postgresql://headrace@db/headrace": metastore,
            "postgresql://…": metastore,
            "-url …": f"-url {metastore}",
            "-url ...": f"-url {metastore}",
        }

    def run(self, unit: str) -> tuple[int, str]:
        """(exit status, output). Questions are answered by yes, as at a terminal."""
        command = unit
        for written, place in self._places.items():
            command = command.replace(written, place)
        if "\n" not in unit:
            command = with_places(command, {})
        if command.startswith(("headrace console", "headrace dev")):
            return self._until_ready(command)
        script = f". {self._state}\nset -e\n{command}\n{{ export -p; echo cd \"'$PWD'\"; }} > {self._state}\n"
        keyboard, terminal = os.openpty()
        try:
            os.write(keyboard, b"y\n")
            ended = subprocess.run(
                ["bash", "-c", script],
                env=self._environ,
                stdin=terminal,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS_MAX,
            )
        finally:
            os.close(keyboard)
            os.close(terminal)
        return ended.returncode, ended.stdout

    def _until_ready(self, command: str) -> tuple[int, str]:
        flags = "--listen 127.0.0.1:0" if "console" in command else "--port 0 --http-port 0 --data-dir other"
        with subprocess.Popen(
            ["bash", "-c", f". {self._state}\nexec {command} {flags}"],
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            assert server.stdout is not None
            lines = []
            for line in server.stdout:
                lines.append(line)
                if line.startswith(READY):
                    server.send_signal(signal.SIGINT)
            status = server.wait(SECONDS_MAX)
        return (status if any(line.startswith(READY) for line in lines) else 1), "".join(lines)


def _wheels_postgres() -> list[Installation]:
    """The Postgres of `headrace dev`: a dump needs a pg_dump that is not older than the server."""
    return [found for found in installations() if "site-packages" in found.bin_dir.parts][:1]


def _first(unit: str) -> str:
    lines = unit.splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} ..."


def walk_all(wanted: Iterable[Path], environment: Environment) -> list[Walked]:
    """Each page in a new folder and cluster."""
    found = []
    for page in wanted:
        with tempfile.TemporaryDirectory(prefix="headrace-walk-") as folder:
            found.append(walk(page, environment, Path(folder)))
            print(found[-1], flush=True)
    return found


def show(wanted: Iterable[Path]) -> int:
    """Print what would be run and what is left out; 1 if a line is in no list, or a list has what no page has."""
    for page in wanted:
        left_out, to_run = sorted_units(page)
        print("\n".join((f"{page.name}:", *(f"  run      {_first(unit)}" for unit in to_run))))
        print("".join(f"  not run  {_first(unit)}: {reason}\n" for unit, reason in left_out.left_out), end="")
    missing = [f"neither a command nor named: {line}" for line in unknown()]
    missing += [f"on no page: {page} {which} {begin!r}" for page, which, begin in stale()]
    print("\n".join((*missing, f"correct {LISTS.name}, or run --prune" if missing else "the lists are complete")))
    return int(bool(missing))


def main() -> int:
    """Walk the named pages, or all; 1 if a command failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.package.walk", description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="names such as GROUPS.md (all)")
    parser.add_argument("--list", action="store_true", help="only print what is run, what is not, and why")
    parser.add_argument("--prune", action="store_true", help=f"remove from {LISTS.name} what no page has any more")
    arguments = parser.parse_args()
    names = set(arguments.pages)
    if arguments.prune:
        prune()
    if arguments.list or arguments.prune:
        return show(page for page in pages() if not names or page.name in names)
    with tempfile.TemporaryDirectory(prefix="headrace-wheel-") as place:
        environment = beside_this_environment(build(WHEEL, Path(place)), Path(place) / "venv")
        found = walk_all([page for page in pages() if not names or page.name in names], environment)
    print(f"{sum(len(w.run) for w in found)} run, {sum(len(w.left_out) for w in found)} not run")
    return int(any(walked.failed for walked in found))


if __name__ == "__main__":
    raise SystemExit(main())
