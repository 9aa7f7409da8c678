"""Walk the commands of docs/start and docs/operate, each page in a new cluster: `python -m tests.package.walk [PAGE]`.

Place: test_pages_walked.py runs it in `make test-all`; test_instructions.py parses the lines of the START
pages and runs README's.
Invariant: each unit of a page is run as it is written, or NOT_RUN says why not. What a reader has to replace (an
address, a folder, "…") is replaced by a place that exists, nothing else. Variables and the folder stay from one to the
next. The report names what was run, and each unit that was not, with its reason.
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

SECONDS_MAX = 900
READY = "ready "
NOT_RUN: dict[str, dict[str, str]] = {
    "EXPORT.md": {"pip install": "the environment has the extras"},
    "INSTALL.md": {"headrace dev --metastore-url": "needs an empty database: tests/cli/test_cli_dev.py"},
    "ORDERED_CLIENT.md": {"": "tests/client runs both, as programs with an event loop"},
    "SCHEMAS.md": {"": "needs Karapace with TLS: tests/compat/apps/test_karapace.py"},
    "SPARK.md": {
        "pip install": "the environment has the extras",
        "psql": "needs another role: tests/metastore/test_planners.py",
        "headrace planners": "needs another role: tests/metastore/test_planners.py",
        "": "needs a Spark session: tests/spark runs the same calls",
    },
    "TABLES.md": {
        "pip install": "the environment has the extras",
        "headrace dev": "it is the cluster that this page is walked in",
        "headrace tables create orders --retention-ms": "the table is there since the first steps of the page",
        "headrace tables delete-rows orders --where": "needs columns of a registry's schema: tests/tables",
        "HEADRACE_": "needs Spark: tests/spark",
        "from headrace": "needs a Spark session: tests/spark",
    },
    "TABLE_COLUMNS.md": {
        "headrace tables create orders --value-format registry": "needs a registry: tests/tables",
        "HEADRACE_": "needs Spark: tests/spark",
    },
    "BACKUPS.md": {
        "began=": "needs an archive and a replica's rights: tests/faults/test_base_backup.py",
        "pg_basebackup": "tests/faults/test_base_backup.py",
        "rm -rf": "tests/faults/test_base_backup.py",
        "headrace backup -c headrace.properties --record base": "tests/faults/test_base_backup.py",
        "cat >>": "tests/faults/test_base_backup.py",
    },
    "CLUSTER.md": {"headrace shell --controllers": "reads lines from a terminal: tests/cli"},
    "COMPACTION.md": {"": "needs Spark: tests/spark"},
    "CONSOLE.md": {"headrace console -b kafka": "needs certificates: tests/cli/console"},
    "DRILLS.md": {"": "a drill takes a minute: tests/load/test_drills.py and `python -m tests.drills.operator_week`"},
    "KUBERNETES.md": {
        "kubectl": "needs a control plane: make kubernetes",
        "helm": "needs a control plane: make kubernetes",
        "openssl": "needs a control plane: make kubernetes",
        "make image": "needs a container tool",
        "docker compose": "needs a container tool: tests/deploy loads the file",
    },
    "PARTITIONS.md": {
        "headrace topics alter orders --double --p": "records move for minutes: tests/growth",
        "headrace topics alter orders --halve": "records move for minutes: tests/growth",
    },
    "POSTGRES.md": {
        "headrace postgres setup": "needs an administrator of a server: tests/cli/postgres/test_setup.py",
        "": "needs a primary and a standby: tests/metastore/life/test_standby_recipe.py",
    },
    "RETENTION.md": {
        "headrace topics restore orders --records": "needs removed records: tests/cli/running/test_cli_restore.py",
    },
    "SECURITY.md": {
        "headrace storage format": "needs a database that is not formatted: tests/cli/test_cli_storage.py",
        "headrace storage rotate-zone-secret --metastore-url ...   # t": "needs agents that were restarted since the"
        " step before: tests/metastore/test_zone_secret.py",
    },
    "TRACING.md": {
        "pip install": "the environment has the extras",
        "headrace agent": "needs a collector: tests/cli/process/test_tracing.py",
    },
    "bench.md": {
        "headrace bench --quick": "",
        "make tools": "installs the tools of the tests",
        "headrace bench": "takes minutes: tests/cli/bench runs rows of it",
    },
}
"""By page: how units begin that are not run, and why. The longest beginning counts; an empty reason runs it."""
GIVEN: dict[str, tuple[str, ...]] = {
    "EXPORT.md": ("headrace topics create orders", "echo 7 | headrace records produce orders"),
    "TABLES.md": ("headrace topics create web",),
    "GROUPS.md": (
        "headrace topics create orders",
        "echo 7 | headrace records produce orders",
        "headrace groups reset-offsets orders-workers --topic orders --to-earliest --execute",
    ),
    "PARTITIONS.md": ("headrace topics create orders --partitions 8",),
    "RETENTION.md": (
        "headrace topics create orders",
        "echo 7 | headrace records produce orders",
        "headrace topics delete orders --yes",
    ),
    "CLUSTER_FILES.md": ("git config --global user.email reader@example.com", "git config --global user.name Reader"),
}
"""What a page takes as given: run before it."""
DEV_FLAGS = {"TABLES.md": ("--tables",), "TABLE_COLUMNS.md": ("--tables",)}


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


def why_not(page: Path, unit: str) -> str:
    """Return why a unit is not run; empty if it is."""
    begins = [begin for begin in NOT_RUN.get(page.name, {}) if unit.startswith(begin)]
    return NOT_RUN[page.name][max(begins, key=len)] if begins else ""


def walk(page: Path, environment: Environment, folder: Path) -> Walked:
    """Run the units of a page in a new cluster; the commands after one that failed are run, too."""
    walked = Walked(page)
    units = [unit for block in command_blocks(page) for unit in block.units]
    walked.left_out = [(unit, why_not(page, unit)) for unit in units if why_not(page, unit)]
    to_run = [unit for unit in units if not why_not(page, unit)]
    if not to_run:
        return walked
    with environment.dev(folder, *DEV_FLAGS.get(page.name, ())) as places:
        shell = _Shell(environment, places, folder)
        for unit in (*GIVEN.get(page.name, ()), *to_run):
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


def main() -> int:
    """Walk the named pages, or all; 1 if a command failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.package.walk", description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="names such as GROUPS.md (all)")
    names = set(parser.parse_args().pages)
    with tempfile.TemporaryDirectory(prefix="headrace-wheel-") as place:
        environment = beside_this_environment(build(WHEEL, Path(place)), Path(place) / "venv")
        found = walk_all([page for page in pages() if not names or page.name in names], environment)
    print(f"{sum(len(w.run) for w in found)} run, {sum(len(w.left_out) for w in found)} not run")
    return int(any(walked.failed for walked in found))


if __name__ == "__main__":
    raise SystemExit(main())
