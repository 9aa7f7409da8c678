"""X14: `headrace link`: what it makes of a client's file, how it waits for a promotion, how it looks at a source."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cli import links
from headrace.cli.link_source import SeenTopic, look, open_source, source_configs
from headrace.cli.main import main
from headrace.config.errors import ConfigError
from headrace.protocol.link_requests import NEVER, LinkOp, LinkRequest, LinkResponse, ShownGroup, ShownLink, ShownTopic

pytestmark = pytest.mark.requirement("X14")
KEY = "-----BEGIN PRIVATE KEY-----\nKEY\n-----END PRIVATE KEY-----"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----"


def _file(folder: Path, **settings: str) -> Path:
    path = folder / "source.properties"
    path.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings.items()))
    return path


def test_certificates_and_keys_are_sent_as_texts(tmp_path: Path) -> None:
    trusted, key = tmp_path / "ca.pem", tmp_path / "client.pem"
    trusted.write_text(CERTIFICATE.format("CA"))
    key.write_text("\n".join([CERTIFICATE.format("OWN"), KEY, CERTIFICATE.format("ISSUER")]))
    file = _file(tmp_path, security_protocol="SSL", ssl_ca_location=str(trusted), ssl_keystore_location=str(key))
    assert source_configs(file, "kafka:9093") == {
        "bootstrap.servers": "kafka:9093",
        "security.protocol": "SSL",
        "ssl.truststore.certificates": CERTIFICATE.format("CA"),
        "ssl.keystore.key": KEY + "\n",
        "ssl.keystore.certificate.chain": CERTIFICATE.format("OWN") + "\n" + CERTIFICATE.format("ISSUER") + "\n",
    }


@pytest.mark.requirement("X2")
def test_references_are_left_to_the_workers_and_resolved_for_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "u"}
    configs = source_configs(_file(tmp_path, **login, sasl_password="${env:HEADRACE_LINK_OLD}"), "kafka:1")
    assert configs["sasl.password"] == "${env:HEADRACE_LINK_OLD}"
    with pytest.raises(ConfigError, match="no environment variable HEADRACE_LINK_OLD"):
        open_source(configs)
    monkeypatch.setenv("HEADRACE_LINK_OLD", "hunter2")
    assert open_source(configs)._config.login.password == "hunter2"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"acks": "all"}, "a link has no setting acks"),
        ({"link_creator": "User:root"}, "a link has no setting link.creator"),
        ({"ssl_truststore_location": "/nowhere"}, "ssl.truststore.location: cannot read /nowhere as PEM"),
        ({"ssl_keystore_location": "/dev/null"}, "needs a private key and its certificates, as PEM"),
    ],
)
def test_a_setting_that_a_link_cannot_have_is_named(tmp_path: Path, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        source_configs(_file(tmp_path, **settings), "kafka:1")


class FakeCluster:
    """Answers LINKS by a function."""

    def __init__(self, answer: Callable[[LinkRequest], LinkResponse]) -> None:
        self._answer = answer
        self.asked: list[LinkRequest] = []
        self.pauses = 0

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def pause(self, seconds: float) -> None:
        self.pauses += 1

    def links(self, request: LinkRequest) -> LinkResponse:
        self.asked.append(request)
        return self._answer(request)


class Promoting:
    """A link with two copies; each look at it promotes one, as long as `stuck` is False."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.stuck = stuck
        self.left = [ShownTopic(name=name, partitions=3, ready=1, lag=lag) for name, lag in (("a", 0), ("b", 7))]

    def __call__(self, request: LinkRequest) -> LinkResponse:
        if request.op is LinkOp.SHOW and not self.stuck and self.left:
            self.left.pop()
        link = ShownLink(name="old", topics=tuple(self.left))
        return LinkResponse(links=(link,), topics=("a", "b") if request.op is LinkOp.PROMOTE else ())


def _run(monkeypatch: pytest.MonkeyPatch, cluster: FakeCluster, *words: str) -> int:
    monkeypatch.setattr(links, "open_cluster", lambda args: cluster)
    return main(["link", *words, "-b", "x:1", "--json"])


def test_promote_waits_until_all_are_ordinary_topics(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = FakeCluster(Promoting())
    assert _run(monkeypatch, cluster, "promote", "old", "--fence-source") == 0
    assert (cluster.asked[0].fence, cluster.pauses) == (True, 1)
    assert json.loads(capsys.readouterr().out) == {
        "link": "old", "topics": ["a", "b"], "outcome": "promoted", "left_behind": {"b": 7}
    }  # fmt: skip


def test_a_promotion_that_does_not_come_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = FakeCluster(Promoting(stuck=True))
    assert _run(monkeypatch, cluster, "promote", "old", "--timeout", "3") == 1
    assert cluster.pauses == 3
    message = "not promoted after 3 s, and the promotion continues: a: 1 of 3 partitions are ready; b: 7 offsets are "
    assert message in capsys.readouterr().err


def test_force_names_what_is_left_behind(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(monkeypatch, FakeCluster(Promoting()), "promote", "old", "--force", "--no-wait") == 0
    assert "left behind: b: 7 offsets" in capsys.readouterr().err


def test_a_drop_asks_before_it_deletes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster(lambda _: LinkResponse(topics=("a",)))
    assert _run(monkeypatch, cluster, "drop", "old", "--delete-topics") == 1
    assert [each.validate_only for each in cluster.asked] == [True]
    assert "delete 1 copies (a)?" in capsys.readouterr().err
    assert _run(monkeypatch, cluster, "drop", "old", "--delete-topics", "--yes") == 0
    assert [each.validate_only for each in cluster.asked] == [True, True, False]


def test_follow_ends_when_all_has_come_or_the_source_is_away() -> None:
    copied = ShownTopic(name="a", lag_ms=0)
    states = [
        (ShownLink(name="old"), True),
        (ShownLink(name="old", problem="no server answered"), False),
        (ShownLink(name="old", cluster_id="c", topics=(ShownTopic(name="a", lag_ms=NEVER),)), True),
        (ShownLink(name="old", cluster_id="c", lag=3, topics=(copied,)), True),
        (ShownLink(name="old", cluster_id="c", topics=(copied,)), False),
    ]
    assert [links._is_copying(link) for link, _ in states] == [copies for _, copies in states]


class Source:
    """A cluster with three topics, which says no sizes."""

    def metadata(self) -> list[Any]:
        partitions = [SimpleNamespace(partition_index=0, leader_id=1)]
        return [SimpleNamespace(name=name, partitions=partitions) for name in ("orders", "other", "taken")]

    def serves(self, api_key: int) -> bool:
        return False


def test_a_look_says_what_would_be_copied_and_what_not(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(name="segment.bytes", value="1", config_source=1)
    monkeypatch.setattr(
        "headrace.cli.link_source.list_offsets", lambda _, at: {key: 5 if at[key] == -1 else 2 for key in at}
    )
    monkeypatch.setattr("headrace.cli.link_source.describe_topics", lambda _, names: {key: [config] for key in names})
    seen: list[SeenTopic] = look(Source(), {"topics": "orders,taken"}, {"taken": "second"})  # type: ignore[arg-type]
    assert [each[:5] for each in seen] == [
        ("orders", 1, 3, -1, ""),
        ("taken", 1, 3, -1, "link 'second' copies a topic of this name"),
    ]
    assert "segment.bytes is left out: invalid value for topic config segment.bytes" in seen[0].notes[0]


def test_groups_are_printed_with_what_they_lack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = (
        ShownGroup(group_id="app", kind="consumer", source_state="Stable", offsets=3, behind=7, copied_ms=4_000),
        ShownGroup(group_id="moved", kind="classic", source_state="Empty", is_here=True, problem="why"),
    )
    link = ShownLink(name="old", groups=groups, groups_problem="groups: not authorized")
    cluster = FakeCluster(lambda request: LinkResponse(links=(link,)))
    monkeypatch.setattr(links, "open_cluster", lambda args: cluster)
    assert main(["link", "groups", "old", "-b", "x:1"]) == 0
    shown = capsys.readouterr()
    assert [line.split()[:7] for line in shown.out.splitlines()[1:]] == [
        ["app", "consumer", "Stable", "follows", "3", "7", "4.0"],
        ["moved", "classic", "Empty", "came", "0", "0", "-"],
    ]
    assert "not authorized" in shown.err
    assert cluster.asked[0].op is LinkOp.GROUPS
    assert _run(monkeypatch, cluster, "groups", "old") == 0
    assert [each["group_id"] for each in json.loads(capsys.readouterr().out)["groups"]] == ["app", "moved"]
