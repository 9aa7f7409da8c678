"""X14: `headrace link` against a running cluster, which is also the source: what it asks for, refuses and shows."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.command_lines import Run, told
from tests.forked_cluster import ForkedCluster

pytestmark = pytest.mark.requirement("X14")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "operate" / "LINKS.md"


def test_a_links_life(run: Run, plain: Run, server: ForkedCluster, tmp_path: Path) -> None:
    source = server.bootstrap
    run("topics", "create", "source.a", "--partitions", "2", "--set", "cleanup.policy=compact")
    run("topics", "create", "source.b")
    file = tmp_path / "old.properties"
    file.write_text("security.protocol=PLAINTEXT\nclient.id=x\n")
    create = ("link", "create", "old", "--from", source, "--command-config", str(file), "--topics", r"source\..*")
    seen = run(*create, "--dry-run")
    assert {each["topic"]: (each["partitions"], each["problem"]) for each in seen["topics"]} == {
        "source.a": (2, "a topic of this name is here already, and is no copy"),
        "source.b": (1, "a topic of this name is here already, and is no copy"),
    }
    assert run("link", "list") == [], "a dry run changes nothing"
    assert "topics: '(' is not RE2 syntax" in run(*create[:-1], "(", status=1)
    assert run(*create, "--exclude", "source.b", "--max-bytes-per-second", "1000000")["outcome"] == "created"
    assert "link 'old' already exists" in run(*create, status=1)
    (listed,) = run("link", "list")
    assert (listed["name"], listed["topics"], listed["topic_count"]) == ("old", [], 0)
    shown = told(lambda: run("link", "show", "old"), lambda link: bool(link["topics"]))
    assert [(each["name"], each["is_linked"]) for each in shown["topics"]] == [("source.a", False)]
    assert shown["configs"]["link.max.bytes.per.second"] == "1000000"
    assert run("link", "pause", "old")["outcome"] == "paused"
    assert plain("link", "list")[1][:2] == ["old", "paused"]
    assert run("link", "resume", "old")["outcome"] == "resumed"
    assert run("link", "alter", "old", "--exclude", "x", "--unset", "link.max.bytes.per.second")["outcome"] == "altered"
    assert "nothing to change" in run("link", "alter", "old", status=1)
    assert "link 'old' has no linked topics" in run("link", "promote", "old", status=1)
    assert "not copied by link 'old': source.a" in run("link", "promote", "old", "--topics", "source.a", status=1)
    assert run("link", "drop", "old") == {"link": "old", "outcome": "dropped", "topics": []}
    assert "link 'old' does not exist" in run("link", "show", "old", status=1)


def test_links_are_kept_in_files(run: Run, server: ForkedCluster, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    configs = f"bootstrap.servers: '{server.bootstrap}', topics: [nothing, 'none.*']"
    file.write_text(
        f"links:\n  - {{name: described, configs: {{{configs}, sasl.password: '${{env:HEADRACE_LINK_UNSET}}'}}}}\n"
    )
    (step,) = run("cluster", "apply", "-f", str(file), "--yes")
    assert (step["action"], step["name"]) == ("create", "link described")
    assert run("cluster", "plan", "-f", str(file)) == [], "a secret that is set is the described one"
    file.write_text(f"links:\n  - {{name: described, configs: {{{configs}}}}}\n")
    (step,) = run("cluster", "apply", "-f", str(file), "--yes")
    assert step["changes"] == [{"field": "sasl.password", "before": "(set)", "after": None}]
    exported = run("cluster", "export", "--only", "links")
    assert exported["links"][0]["configs"] == {"bootstrap.servers": server.bootstrap, "topics": "nothing,none.*"}
    file.write_text("links: []\nclusterConfigs: {}\n")
    (step,) = run("cluster", "apply", "-f", str(file), "--yes", "--prune", "links:described")
    assert step["action"] == "delete"
    assert run("link", "list") == []


def _commands(page: str) -> list[list[str]]:
    """The words of each command of the page, without the address of the cluster."""
    lines = [line.strip() for line in page.splitlines() if line.startswith("    headrace link ")]
    return [shlex.split(line)[1:-2] for line in lines]


def test_the_commands_of_the_page_run_in_their_order(run: Run, server: ForkedCluster, tmp_path: Path) -> None:
    """The source has no such topic here: there is nothing to follow and to promote."""
    login = tmp_path / "old.properties"
    login.write_text("security.protocol=PLAINTEXT\n")
    given = {"127.0.0.1:9192": server.bootstrap, "old.properties": str(login), "orders.*": r"page\..*"}
    commands = [[given.get(word, word) for word in words] for words in _commands(PAGE.read_text(encoding="utf-8"))]
    names = [words[1] for words in commands]
    assert names == ["create", "create", "show", "promote", "promote", "drop", "alter", "groups"]
    commands = [*commands[:3], *commands[6:], *commands[3:6]]  # what the page says of groups is before the promotion
    dry, create, follow, alter, groups, promote, promote_all, drop = commands
    assert run(*dry)["topics"] == []
    assert run(*create)["outcome"] == "created"
    told(lambda: run("link", "show", "old"), lambda link: bool(link["cluster_id"]))
    assert run(*follow)["problem"] == ""
    assert run(*alter)["outcome"] == "altered"
    assert run(*groups)["groups"] == []
    assert "not copied by link 'old': orders.eu" in run(*promote, status=1)
    assert "link 'old' has no linked topics" in run(*promote_all, status=1)
    assert run(*drop)["outcome"] == "dropped"
