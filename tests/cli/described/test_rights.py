"""The least rights of `headrace cluster plan`, `apply` and `export` against Headrace, and as the page names them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.config.free_ports import free_ports
from tests.agent_process import AgentUnderTest, format_storage
from tests.cli.described.rights_checks import CHANGES, READS, Secured, check_rights

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "CLUSTER_FILES.md"


@pytest.fixture
def secured(metastore_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Secured]:
    clients, admin = free_ports(2)
    settings: dict[str, object] = {"metastore.url": metastore_url, "bucket": f"file://{tmp_path}/bucket"}
    format_storage(settings)
    settings |= {
        "process.roles": "broker,controller",
        "listeners": f"CLIENT://127.0.0.1:{clients},ADMIN://127.0.0.1:{admin}",
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "log.level": "error",
    }
    with AgentUnderTest(settings) as agent:
        yield Secured(agent.kafka, f"127.0.0.1:{admin}", tmp_path, capsys)


def test_the_named_rights_suffice_and_each_is_needed(secured: Secured) -> None:
    check_rights(secured)


@pytest.mark.parametrize("rights", [READS, CHANGES], ids=["reads", "changes"])
def test_the_page_names_them(rights: Sequence[str]) -> None:
    (row,) = [
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `plan`" if rights is READS else "| `apply`")
    ]
    named = {"cluster": set[str](), "topic": set[str]()}
    for cell, kind in zip(row.split("|")[2:4], named, strict=True):
        named[kind] = {word.replace("_", "").lower() for word in re.findall(r"[A-Z_]{4,}", cell)}
    for kind, found in named.items():
        assert found == {right.split()[1].lower() for right in rights if right.startswith(kind)}
