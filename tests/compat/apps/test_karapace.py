"""Karapace's schema registry: it keeps schemas and configs in `_schemas`, and reads that topic when it starts."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.config.free_ports import free_ports
from load.dev_server import DevServer
from tests.compat.apps.app import App, is_compacted, was_cleaned
from tests.examples import changed, settings
from tests.tools.python_apps import python_of

pytestmark = [
    pytest.mark.requirement("L1", "L2", "L3"),
    pytest.mark.slow,
    pytest.mark.needs("karapace"),
]
SUBJECTS, VERSIONS, ROUNDS = 5, 3, 20
"""Numbers of records: in each round the compatibility of every subject changes: a record under the subject's one
key.
"""
DELETED = SUBJECTS
"""A subject that is deleted. Karapace gives its ids again once its records are cleaned."""
LEVELS = ("FULL", "BACKWARD")
MOVED = (DELETED + 1, DELETED + 2)
"""Subjects of the registry that moves."""


class Registry:
    """A process of Karapace's, and what it answers."""

    def __init__(self, bootstrap: str, log: Path) -> None:
        (port,) = free_ports(1)
        self._url, self._log = f"http://127.0.0.1:{port}", log
        changes = {"KARAPACE_BOOTSTRAP_URI": bootstrap, "KARAPACE_PORT": str(port)}
        faster = {"KARAPACE_WAITING_TIME_BEFORE_ACTING_AS_MASTER_MS": "100", "PYTHONPATH": ""}
        self._environment = changed(settings("karapace/karapace.env"), changes) | faster

    def started(self) -> App:
        """A context: it runs."""
        return App([python_of("karapace"), "-m", "karapace"], self._log, self._environment)

    def ask(self, path: str, body: object = None, method: str = "GET") -> object:
        """The answer's JSON."""
        request = urllib.request.Request(
            self._url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def is_up(self) -> bool:
        """Return whether it takes writes, which it does once it has read its topic and leads."""
        try:
            self.ask("/config", {"compatibility": "BACKWARD"}, "PUT")
        except (urllib.error.URLError, OSError):
            return False
        return True

    def register(self, subject: int, version: int) -> int:
        """A schema that is compatible with those before it; its id."""
        fields = [{"name": f"field_{n}", "type": "int", "default": 0} for n in range(version + 1)]
        schema = json.dumps({"type": "record", "name": f"Record{subject}", "fields": fields})
        answer = self.ask(f"/subjects/subject-{subject}/versions", {"schema": schema}, "POST")
        assert isinstance(answer, dict)
        return int(answer["id"])

    def state(self) -> dict[str, object]:
        """All that it knows."""
        subjects = self.ask("/subjects")
        assert isinstance(subjects, list)
        paths = [f"/config/{subject}" for subject in subjects]
        paths += [f"/subjects/{subject}/versions/{n + 1}" for subject in subjects for n in range(VERSIONS)]
        return {"/subjects": sorted(subjects)} | {path: self.ask(path) for path in paths}


@pytest.mark.parametrize("bootstrap", ["headrace", "kafka"], indirect=True)
def test_schemas_and_configs_are_read_from_the_cleaned_topic(bootstrap: str, tmp_path: Path) -> None:
    registry = Registry(bootstrap, tmp_path / "log")
    with registry.started() as app:
        app.until(registry.is_up, "the registry is up")
        ids = [registry.register(subject, version) for version in range(VERSIONS) for subject in range(SUBJECTS)]
        registry.register(DELETED, 0)
        for number in range(ROUNDS):
            for subject in range(SUBJECTS):
                level = LEVELS[(number + subject) % 2]
                registry.ask(f"/config/subject-{subject}", {"compatibility": level}, "PUT")
        for query in ("", "?permanent=true"):
            registry.ask(f"/subjects/subject-{DELETED}{query}", method="DELETE")
        app.until(lambda: was_cleaned(bootstrap, "_schemas"), "the topic was cleaned")
        before = registry.state()
    assert is_compacted(bootstrap, "_schemas")
    assert len(before["/subjects"]) == SUBJECTS  # type: ignore[arg-type]
    with registry.started() as app:
        app.until(registry.is_up, "the registry is up again")
        assert registry.state() == before
        assert registry.register(0, VERSIONS) not in ids, "no id of a kept schema is given again"


@pytest.mark.requirement("X14")
def test_a_registry_that_moves_by_a_link_finds_its_schemas(kafka_cluster: str, tmp_path: Path) -> None:
    """`_schemas` is copied while the registry still writes at the source; after the promotion it goes on here."""
    old = Registry(kafka_cluster, tmp_path / "old.log")
    with DevServer(tmp_path / "dev") as server:
        here = server.bootstrap
        with old.started() as app:
            app.until(old.is_up, "the registry is up at the source")
            ids = [old.register(subject, version) for version in range(VERSIONS - 1) for subject in MOVED]
            _link(here, "create", "old", "--from", kafka_cluster, "--topics", "_schemas")
            ids += [old.register(subject, VERSIONS - 1) for subject in MOVED]
            for subject, level in zip(MOVED, LEVELS, strict=True):
                old.ask(f"/config/subject-{subject}", {"compatibility": level}, "PUT")
            before = old.state()
        for words in (("show", "old", "--follow"), ("verify", "old"), ("promote", "old"), ("drop", "old")):
            _link(here, *words)
        new = Registry(here, tmp_path / "new.log")
        with new.started() as app:
            app.until(new.is_up, "the registry is up here")
            assert new.state() == before
            assert new.register(MOVED[0], VERSIONS) not in ids


def _link(bootstrap: str, *words: str) -> None:
    assert main(["link", *words, "-b", bootstrap]) == 0
