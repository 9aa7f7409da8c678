"""Every `headrace` command that a message or the doctor prints, and what it does where a setting is wrong.

A person runs what an error says. So each such command is run here on a live cluster with the wrong bucket, the wrong
metastore or the wrong address, and makes nothing worse: nothing is formatted, no life begins, nothing is deleted, and
what was acknowledged stays readable. `test_every_printed_command_is_known` collects the commands from the sources; a
new one needs a line in COMMANDS.
"""

from __future__ import annotations

import ast
import asyncio
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from headrace.cli.commands import COMMANDS as PARSED
from headrace.cli.doctor.bucket_facts import read_bucket_facts, verdict_of
from headrace.cli.main import main
from headrace.config.settings import Settings
from headrace.metastore.life.verdict import LifeVerdict
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.formatted import formatted_cluster
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.objects.directory import DirectoryStore
from tests.forked_cluster import ForkedCluster
from tests.kafka_clients import KafkaClients

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "agent",
    "cli",
    "client",
    "compactor",
    "config",
    "metastore",
    "protocol",
    "scan",
    "spark",
    "storage",
    "tables",
)
RECORDS = 20
SECONDS_MAX = 120.0
SAID = re.compile(r"headrace ((?:[a-z][a-z-]+)(?: [a-z][a-z-]+)?(?: --[a-z-]+)?)")
"""Command, subcommand and the first option."""
RUNS = "run below with each wrong setting"
COMMANDS = {
    "storage format": RUNS,
    "storage adopt-bucket": RUNS,
    "migrate": RUNS,
    "migrate --restored": RUNS,
    "audit": RUNS,
    "audit --lost": RUNS,
    "audit --resume-janitor": RUNS,
    "backup": RUNS,
    "storage seal-secrets": RUNS,
    "storage grow-commit-shards": RUNS,
    "cluster unregister": RUNS,
    "agent": "refused at its start: test_cli_buckets.py",
    "compactor": "the same",
    "dev": "the same; it refuses a database or directory of another cluster: test_cli_dev.py",
    "configs set": "changes the value that it names, in the cluster that it is given; where the value decides what is"
    " deleted, no message prints one (test_setting_reporter.py)",
    "configs describe": "reads",
    "configs": "named as the way to change values",
    "cluster apply": "named in the schema of the files that it reads; asks before it changes anything",
    "top": "the title of the screen",
    "features upgrade": "raises a level that all agents have, or is refused",
    "link create": "named as the way to copy topics; adds a link to the cluster that it is given, or is refused",
    "link show": "reads",
    "link groups": "reads",
    "link resume": "named for a link that is paused; asks the agents",
    "link promote": "named where a copy refuses a change; asks the agents, and waits for the source's end",
    "link drop": "named for a copy that shall go; refused while there are copies, and asks before it deletes them",
    "tables resume": "continues the table that it names, as its reason says",
    "tables pause": "stops the table that it names; `tables resume` undoes it",
    "tables drop": "named for a table of a topic that is gone; asks, and deletes no record of a topic",
    "tables detach": "named for such a table, too; keeps its rows",
    "tables show": "reads",
    "tables create": "named as the way to give a schema; makes a table that is not there",
    "topics restore": "named when a topic was deleted; brings back what it names, or is refused",
    "topics alter": "named as the way to double a topic; asks the agents",
    "groups reset-offsets": "named as another way; shows what it would do without --execute",
    "storage random-uuid": "prints an id",
    "topics create": "printed by `headrace dev` with its own address",
    "records produce": "the same",
    "records consume": "the same",
    "console": "the same; reads",
    "groups describe": "reads",
    "groups list": "reads",
    "transactions find-hanging": "reads",
    "transactions abort": "named as the way to end a transaction; asks the agents",
    "doctor": "reads",
    "postgres setup": "prints; with --execute it adds roles, a database and rights to the server that it is given, and"
    " takes only the secret of the zones from the reader",
    "damage": "named as the way past damage",
    "damage list": "reads",
    "damage repair": "refuses another bucket and a copied database before it looks, as `audit --lost` does",
    "damage skip": "the same; it tries a repair first, and asks",
}
NOT_PRINTED = ("DESCRIPTION", "EPILOG")
"""Names of texts for --help; arguments `help` and `description` are such texts, too."""


def printed() -> dict[str, set[str]]:
    """Command -> files that print it: in a string that is neither a docstring nor the text of --help."""
    found: dict[str, set[str]] = {}
    known = {command.name for command in PARSED}
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        text = path.read_text()
        if "headrace " not in text:
            continue
        for said in _strings(ast.parse(text)):
            for match in SAID.finditer(said):
                words = match[1].split()
                if words[0] in known:
                    found.setdefault(_command(words), set()).add(str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "metastore").rglob("*.sql")):
        code = "\n".join(line.partition("--  ")[0] for line in path.read_text().splitlines() if line[:2] != "--")
        for match in SAID.finditer(code):
            found.setdefault(_command(match[1].split()), set()).add(str(path.relative_to(ROOT)))
    return found


def _command(words: list[str]) -> str:
    """The shortest name in COMMANDS that says what it is."""
    for count in (len(words), 2, 1):
        if " ".join(words[:count]) in COMMANDS:
            return " ".join(words[:count])
    return " ".join(words)


def _strings(tree: ast.Module) -> Iterator[str]:
    """Texts as they are printed, with ... for what is filled in."""
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out.add(node.value)
        if isinstance(node, ast.keyword) and node.arg in ("help", "description", "epilog"):
            left_out.update(ast.walk(node.value))
        names = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(name, ast.Name) and name.id in NOT_PRINTED for name in names):
            left_out.update(ast.walk(node))
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            left_out.update(node.values)
            parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_printed_command_is_known() -> None:
    found = printed()
    assert found.keys() - COMMANDS.keys() == set(), "say in COMMANDS what it does where a setting is wrong, or run it"
    assert found.keys() >= {command for command, what in COMMANDS.items() if what == RUNS}, "printed no more"
    assert set(WRONG) == {command for command, what in COMMANDS.items() if what == RUNS}


WRONG: dict[str, list[str]] = {
    "storage format": ["storage", "format", "--ignore-formatted", "--cluster-id", "CLUSTER"],
    "storage adopt-bucket": ["storage", "adopt-bucket", "--force"],
    "migrate": ["migrate"],
    "migrate --restored": ["migrate", "--restored"],
    "audit": ["audit"],
    "audit --lost": ["audit", "--lost"],
    "audit --resume-janitor": ["audit", "--resume-janitor", "--yes"],
    "backup": ["backup", "--to", "FILE"],
    "storage seal-secrets": ["storage", "seal-secrets"],
    "storage grow-commit-shards": ["storage", "grow-commit-shards", "--to", "16"],
    "cluster unregister": ["cluster", "unregister", "--id", "1"],
}
"""Words of each command, without the settings."""
MISTAKES = {
    "another prefix": ("right", "wrong"),
    "another database with everything": ("copy", "right"),
    "an empty database": ("empty", "right"),
    "both": ("copy", "wrong"),
}
"""Name -> metastore, bucket."""


class LiveCluster:
    """An agent that clients use, and places that a setting names by mistake."""

    def __init__(self, server: EmbeddedPostgres, place: Path, stack: ExitStack) -> None:
        self.cluster = stack.enter_context(ForkedCluster(server, place / "right"))
        url = self.cluster.metastore_url
        name = str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])
        self.urls = {"right": url, "copy": server.url(f"{name}_copy"), "empty": server.url(f"{name}_empty")}
        self.places = {"right": place / "right" / "bucket", "wrong": place / "wrong"}
        self.places["wrong"].mkdir()
        self.produced = 0
        self.produce()
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}_empty".encode())
            admin.execute(f"CREATE DATABASE {name}_copy STRATEGY FILE_COPY".encode())
        self._copy_rows()

    def _copy_rows(self) -> None:
        """Copy the cluster's row, as a restored dump has it; the original is in use, so it cannot be a template."""
        from load.postgres_servers import ask, run

        main(["migrate", "--metastore-url", self.urls["copy"]])
        (row,) = ask(self.urls["right"], "SELECT to_jsonb(c)::text FROM cluster c")
        run(
            self.urls["copy"],
            "DELETE FROM cluster; INSERT INTO cluster SELECT (jsonb_populate_record(NULL::cluster,"
            f" $json${row}$json$::jsonb)).*",
        )

    def produce(self) -> None:
        clients = KafkaClients(self.cluster.bootstrap)
        if not self.produced:
            clients.create("t")
        clients.produce("t", range(self.produced, self.produced + RECORDS))
        self.produced += RECORDS

    def flags(self, metastore: str, bucket: str) -> list[str]:
        return ["--metastore-url", self.urls[metastore], "--bucket", self.places[bucket].as_uri()]

    def assert_no_worse(self) -> None:
        """Clients write and read everything; the metastore is the one that the bucket names."""
        self.produce()
        found = KafkaClients(self.cluster.bootstrap).read("t", self.produced)
        assert [int(message.value() or b"") for message in found] == list(range(self.produced))
        assert asyncio.run(self._verdict()) is LifeVerdict.CURRENT
        found = formatted_cluster(self.urls["right"])
        assert found is not None
        assert found.bucket is not None
        assert found.bucket.address == self.places["right"].as_uri()
        assert [path for path in self.places["wrong"].rglob("*") if path.is_file()] == []

    async def _verdict(self) -> LifeVerdict:
        metastore = await PostgresMetastore.open(self.urls["right"], Settings(metastore_pool_size=1))
        try:
            store = DirectoryStore(self.places["right"], SystemClock())
            return await verdict_of(metastore.life, await read_bucket_facts(store))
        finally:
            await metastore.close()


@pytest.fixture(scope="module")
def live(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with ExitStack() as stack:
        yield LiveCluster(postgres_server, tmp_path_factory.mktemp("live"), stack)


@pytest.mark.slow
@pytest.mark.requirement("C12", "X4")
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("command", [command for command in WRONG if command != "cluster unregister"])
def test_a_printed_command_makes_nothing_worse(
    live: LiveCluster, command: str, mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings are wrong as they were when the message was printed."""
    from headrace.metastore.postgres.installation import find_installation

    monkeypatch.setenv("PATH", str(find_installation().bin_dir), prepend=":")
    metastore, bucket = MISTAKES[mistake]
    found = formatted_cluster(live.urls["right"])
    assert found is not None
    given = {"CLUSTER": found.cluster_id, "FILE": str(tmp_path / "dump")}
    words = [given.get(word, word) for word in WRONG[command]]
    status = main([*words, *live.flags(metastore, bucket)])
    if command in ("storage adopt-bucket", "migrate --restored", "audit --resume-janitor"):
        assert status == 1
    try:
        live.assert_no_worse()
    finally:
        shutil.rmtree(live.places["wrong"])
        live.places["wrong"].mkdir()


@pytest.mark.slow
@pytest.mark.requirement("X4")
@pytest.mark.parametrize("words", [["migrate", "--restored"], ["storage", "adopt-bucket", "--force"]])
def test_a_command_for_a_stopped_cluster_is_refused_while_it_runs(live: LiveCluster, words: list[str]) -> None:
    assert main([*words, *live.flags("right", "right")]) == 1
    live.assert_no_worse()


@pytest.mark.slow
@pytest.mark.requirement("X4")
def test_an_agent_that_is_unregistered_by_mistake_comes_back(live: LiveCluster) -> None:
    """The doctor names those that are gone; this one is not."""
    words = [*WRONG["cluster unregister"], "--bootstrap-server", live.cluster.bootstrap]
    main(words)
    until = time.monotonic() + SECONDS_MAX
    while not AdminClient({"bootstrap.servers": live.cluster.bootstrap}).list_topics(timeout=SECONDS_MAX).brokers:
        assert time.monotonic() < until
        time.sleep(0.1)
    live.assert_no_worse()
