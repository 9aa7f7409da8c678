"""A base backup and a WAL archive by the commands of BACKUPS.md: taken under load, restored, everything there.

Fault model: the server and its volume are lost; the archive and the bucket are not.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from headrace.cli.main import main
from headrace.metastore.postgres.embedded import USER
from headrace.metastore.postgres.installation import find_installation
from load.postgres_servers import Servers, ask
from tests.agent_process import SECONDS_MAX, AgentUnderTest, format_storage
from tests.faults.test_postgres_promotion import _accept, _offsets_in, _until_delivered
from tests.faults.test_two_agents import _assert_once_in_order, _create, _produce, _read_all
from tests.share_member import ShareMember

pytestmark = [pytest.mark.slow, pytest.mark.requirement("X4")]
PAGE = Path(__file__).parents[2] / "docs" / "operate" / "BACKUPS.md"
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
BEFORE, DURING, AFTER, LATE = 500, 1_500, 500, 300
"""Records before the base backup, while it is taken, after it, and after the time to which the restore goes."""
TOPIC, LATER = "orders", "later"
EARLIEST = "share.auto.offset.reset=earliest"


class Recipe:
    """The commands of the page, with directories of this test."""

    def __init__(self, servers: Servers, folder: Path, settings: dict[str, object]) -> None:
        self.servers, self.settings, self._folder = servers, settings, folder
        for name in ("archive", "backups"):
            (folder / name).mkdir()
        servers.give(folder / "archive")
        self._write_properties()

    def block(self, word: str) -> str:
        """The one block of the page with this word, with the places of this test."""
        (found,) = (block for block in BLOCKS if word in block)
        for name in ("archive", "backups"):
            found = re.sub(rf"(?<![\w/])/{name}/", f"{self._folder}/{name}/", found)
        return found.replace("headrace.properties", str(self._folder / "headrace.properties"))

    def archive_wal(self) -> None:
        """Set the server up as the page says."""
        self.servers.configure("primary", self.block("archive_mode"))
        self._use("primary")

    def take(self) -> None:
        """Take a base backup and record it."""
        self._shell(self.block("pg_basebackup"), "primary")

    def finish_archive(self) -> None:
        """Do what archive_timeout does after a minute: the segment is complete and is archived."""
        url = self.servers.url("primary")
        (segment,) = ask(url, "SELECT pg_walfile_name(pg_switch_wal())")
        until = time.monotonic() + SECONDS_MAX
        while not (self._folder / "archive" / segment).exists():
            assert time.monotonic() < until, segment
            time.sleep(0.05)

    def restore(self, until: str | None) -> None:
        """Step 2 of the page on a new volume, then start Postgres."""
        block = self.block("recovery.signal")
        line = re.compile(r"^recovery_target_time = '.*'\n", re.MULTILINE)
        assert line.search(block)
        block = line.sub("" if until is None else f"recovery_target_time = '{until}'\n", block)
        data = self.servers.data_of("restored")
        subprocess.run(["sh", "-euc", block], env=os.environ | {"PGDATA": str(data)}, check=True)
        self.servers.start_restored("restored")
        self._use("restored")

    def command(self, *words: str) -> list[str]:
        return [*words, "-c", str(self._folder / "headrace.properties")]

    def _use(self, name: str) -> None:
        self.settings["metastore.url"] = self.servers.url(name)
        self._write_properties()

    def _write_properties(self) -> None:
        lines = [f"{name}={self.settings[name]}\n" for name in ("metastore.url", "bucket")]
        (self._folder / "headrace.properties").write_text("".join(lines))

    def _shell(self, block: str, server: str) -> None:
        place = parse_qs(urlsplit(self.servers.url(server)).query)
        programs = find_installation().bin_dir
        environment = os.environ | {
            "PGHOST": place["host"][0], "PGPORT": place["port"][0], "PGUSER": USER,
            "PATH": f"{Path(sys.executable).parent}:{programs}:{os.environ['PATH']}",
        }  # fmt: skip
        done = subprocess.run(["sh", "-euxc", block], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "kind=base" in done.stdout


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[Recipe]:
    folder = Path(tempfile.mkdtemp(prefix="headrace-base-"))
    folder.chmod(0o711)  # for Postgres, which does not run as root
    with Servers(fsync=True) as servers:
        settings: dict[str, object] = {
            "metastore.url": servers.url("primary"), "bucket": f"file://{tmp_path}/bucket", "log.level": "warning",
        }  # fmt: skip
        format_storage(settings)
        yield Recipe(servers, folder, settings)
    shutil.rmtree(folder)


@pytest.mark.parametrize("is_to_a_time", [True, False], ids=["to a time", "to the end of the archive"])
def test_every_acknowledged_record_that_the_archive_has_is_read_after_a_restore(
    recipe: Recipe, is_to_a_time: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.archive_wal()
    count = BEFORE + DURING + AFTER
    with AgentUnderTest(recipe.settings) as agent:
        _create(agent.kafka, TOPIC)
        _create(agent.kafka, LATER)
        backup = threading.Thread(target=recipe.take)
        acknowledged = _produce(agent.kafka, TOPIC, count, {BEFORE: backup.start, BEFORE + DURING: backup.join})
        assert len(acknowledged) == count
        assert main(["configs", "set", "--group", "workers", EARLIEST, "-b", agent.kafka]) == 0
        worker = ShareMember(agent.kafka, "workers", TOPIC)
        worker.join()
        _accept(worker, 100)
        (until,) = ask(recipe.servers.url("primary"), "SELECT clock_timestamp()::text")
        late = _produce(agent.kafka, LATER, LATE, {})
        assert len(late) == LATE, "acknowledged after the time to which the restore goes"
        late_accepts = _accept(worker, 50)
        recipe.finish_archive()
        if is_to_a_time:
            recipe.servers.kill("primary")
    if not is_to_a_time:
        recipe.servers.kill("primary")
    recipe.servers.remove("primary")

    recipe.restore(until if is_to_a_time else None)
    assert main(recipe.command("migrate", "--restored")) == 0
    with AgentUnderTest(recipe.settings) as agent:
        _assert_once_in_order(_read_all(agent.kafka, TOPIC, count), count)
        capsys.readouterr()
        assert main(recipe.command("audit", "--lost", "--json")) == int(is_to_a_time)
        report = json.loads(capsys.readouterr().out)
        lost = report["partitions"]
        lost_accepts = _offsets_in(report["share_groups"]["lost"], "workers", TOPIC)
        again = ShareMember(agent.kafka, "workers", TOPIC)
        again.join()
        if is_to_a_time:
            assert sum(partition["records"] for partition in lost if partition["topic"] == LATER) == LATE
            assert lost_accepts == late_accepts, "the agent recorded them when it stopped, without Postgres"
            assert _until_delivered(again, late_accepts)
        else:
            assert not lost
            assert not lost_accepts
            assert not late_accepts & {record[:2] for record in again.poll(100)}
            _assert_once_in_order(_read_all(agent.kafka, LATER, LATE), LATE)
        assert main(recipe.command("audit", "--resume-janitor")) == 0
        assert len(_produce(agent.kafka, TOPIC, AFTER, {})) == AFTER
