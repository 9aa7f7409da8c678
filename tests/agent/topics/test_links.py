"""X14: the request LINKS: what it changes, what it refuses, and what it shows; secrets are in no answer and no log."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.apis.links import changed_link
from headrace.agent.cluster.log_change import LogChange
from headrace.agent.topics.link_report import NOT_JUDGED, ON_BOTH_SIDES
from headrace.agent.topics.links import LinkRequests
from headrace.config.link_configs import LINK_RESOURCE
from headrace.metastore.api.linked_groups import LinkedGroup
from headrace.metastore.api.links import LinkSource, Promotion
from headrace.metastore.link_secrets import opened
from headrace.metastore.sealing import Sealing
from headrace.protocol.link_requests import (
    BODY_BYTES_MAX,
    LINKS_KEY,
    NEVER,
    LinkOp,
    LinkRequest,
    LinkResponse,
    decode_link_response,
    encode_link_request,
)
from headrace.protocol.request import CloseConnection, Request
from headrace.storage.errors import InvalidError, OutcomeUnknownError, UnavailableError
from tests.agent.client_calls import a_request
from tests.agent.cluster.fake_link_api import FakeLinkApi
from tests.agent.cluster.made_agents import an_agent
from tests.manual_clock import ManualClock
from tests.nouns import nouns

pytestmark = pytest.mark.requirement("X14")
HEADER_BYTES = 4 + 8 + 2
NOW_MS = 1_000_000
KEYS = base64.b64encode(b"k" * 32).decode()
SOURCE: dict[str, str | None] = {"bootstrap.servers": "kafka:9092", "topics": "orders.*"}


class World:
    """One agent, in a cluster that may have links."""

    def __init__(self, clock: ManualClock, *, keys: str | None = KEYS) -> None:
        self.clock, self.api = clock, FakeLinkApi(clock)
        self.sealing = Sealing(keys)
        self.cluster = an_agent(self.api)
        change = LogChange(self.cluster, nouns(self.api).cluster, clock)
        self.handler = LinkRequests(change, nouns(self.api), self.sealing, lambda: NOW_MS)

    def request(self, op: LinkOp, link: str = "old", **more: Any) -> Request:
        frame = encode_link_request(LinkRequest(op=op, link=link, **more), "", 7)
        request = a_request(LINKS_KEY, 0, frame[HEADER_BYTES:], received_at=self.clock.monotonic())
        request.connection.principal = "User:alice"
        return request

    async def ask(self, op: LinkOp, link: str = "old", **more: Any) -> LinkResponse:
        answer = await self.clock.run(self.handler(self.request(op, link, **more)))
        assert answer.buffers is not None
        return decode_link_response(memoryview(b"".join(answer.buffers)))

    async def create(self, **more: str | None) -> LinkResponse:
        configs = SOURCE | {name.replace("__", "."): value for name, value in more.items()}
        return await self.ask(LinkOp.CREATE, configs=configs)

    @property
    def configs(self) -> dict[str, str]:
        return dict(self.api.image.configs.get((LINK_RESOURCE, "old"), {}))

    def add_copy(self, name: str = "orders", **progress: Any) -> None:
        self.api.add_topic(name, 1, {"link.name": "old"})
        self.api.copy(name, **progress)


@pytest.fixture
def world(fake_clock: ManualClock) -> World:
    world = World(fake_clock)
    world.api.add_feature()
    return world


async def test_a_link_is_created_once_with_its_creator(world: World) -> None:
    assert (await world.create()).error_code == 0
    assert world.configs == {**SOURCE, "link.state": "active", "link.creator": "User:alice"}
    assert world.api.forgotten == ["old"], "what a dropped link of this name found"
    again = await world.create(topics="others")
    assert (again.error_code, again.message) == (ErrorCode.duplicate_resource, "link 'old' already exists")
    assert world.configs["topics"] == "orders.*"


async def test_a_check_changes_nothing(world: World) -> None:
    head = len(world.api.log)
    assert (await world.ask(LinkOp.CREATE, configs=SOURCE, validate_only=True)).error_code == 0
    refused = await world.ask(LinkOp.CREATE, configs=SOURCE | {"topics": "("}, validate_only=True)
    assert refused.error_code == ErrorCode.invalid_config
    assert (len(world.api.log), world.api.forgotten) == (head, [])


@pytest.mark.parametrize(
    ("link", "configs", "code", "message"),
    [
        ("a b", SOURCE, ErrorCode.invalid_request, "the name of a link has ASCII letters"),
        ("old", {"topics": "a"}, ErrorCode.invalid_config, "bootstrap.servers: name the source"),
        ("old", SOURCE | {"link.creator": "User:root"}, ErrorCode.invalid_config, "link.creator: set by the agent"),
        ("old", SOURCE | {"link.fence.source": "true"}, ErrorCode.invalid_config, "link.fence.source: set by the age"),
        ("old", SOURCE | {"acks": "all"}, ErrorCode.invalid_config, "acks: links have no such config"),
    ],
)
async def test_a_link_that_cannot_work_is_refused(
    world: World, link: str, configs: dict[str, str], code: ErrorCode, message: str
) -> None:
    answer = await world.ask(LinkOp.CREATE, link, configs=configs)
    assert answer.error_code == code
    assert message in (answer.message or "")
    assert not world.api.image.links


async def test_a_cluster_with_older_agents_has_no_links(fake_clock: ManualClock) -> None:
    world = World(fake_clock)
    answer = await world.create()
    assert (answer.error_code, world.configs) == (ErrorCode.unsupported_version, {})
    assert "headrace features upgrade --feature cluster.links=1" in (answer.message or "")


async def test_there_is_a_limit_of_links(world: World) -> None:
    for number in range(100):
        world.api.add_link(f"link-{number}")
    assert (await world.create()).error_code == ErrorCode.policy_violation


@pytest.mark.requirement("X2")
async def test_secrets_are_sealed_before_the_log_and_never_shown(world: World) -> None:
    login = {"sasl__username": "u", "sasl__password": "hunter2"}
    answer = await world.create(security__protocol="SASL_SSL", sasl__mechanism="PLAIN", **login)
    assert answer.error_code == 0
    assert b"hunter2" not in b"".join(world.api.log)
    assert opened(world.sealing, "old", world.configs)["sasl.password"] == "hunter2"
    (shown,) = (await world.ask(LinkOp.SHOW)).links
    assert (shown.configs["sasl.password"], shown.configs["sasl.username"]) == (None, "u")
    assert (await world.ask(LinkOp.ALTER, configs={"sasl.mechanism": "SCRAM-SHA-512"})).error_code == 0, "it is kept"
    unset = await world.ask(LinkOp.ALTER, configs={"sasl.password": None})
    assert "sasl.username: set sasl.username and sasl.password" in (unset.message or "")


@pytest.mark.requirement("X2")
async def test_without_keys_a_secret_is_refused_with_what_to_set(fake_clock: ManualClock) -> None:
    world = World(fake_clock, keys=None)
    world.api.add_feature()
    answer = await world.create(sasl__password="hunter2")
    assert answer.error_code == ErrorCode.invalid_config
    assert "metadata.secret.keys" in (answer.message or "")
    assert "hunter2" not in (answer.message or "")
    assert (await world.create(sasl__password="${env:HEADRACE_LINK_PASSWORD}")).error_code == 0
    assert world.configs["sasl.password"] == "${env:HEADRACE_LINK_PASSWORD}"


async def test_configs_change_one_by_one_and_the_link_is_checked_as_a_whole(world: World) -> None:
    world.api.add_link(link__creator="User:bob")
    assert (await world.ask(LinkOp.ALTER, configs={"topics.exclude": "orders.test"})).error_code == 0
    assert world.configs["topics.exclude"] == "orders.test"
    assert world.configs["link.creator"] == "User:alice", "its topics are created with the rights of who changed it"
    assert (await world.ask(LinkOp.ALTER, configs={"topics": None})).error_code == ErrorCode.invalid_config
    head = len(world.api.log)
    assert (await world.ask(LinkOp.ALTER, configs={"topics": "orders.*"})).error_code == 0
    assert len(world.api.log) == head
    gone = await world.ask(LinkOp.ALTER, "new", configs={"topics": "a"})
    assert (gone.error_code, gone.message) == (ErrorCode.resource_not_found, "link 'new' does not exist")


async def test_pause_and_resume(world: World) -> None:
    world.api.add_link()
    for op, state in ((LinkOp.PAUSE, "paused"), (LinkOp.PAUSE, "paused"), (LinkOp.RESUME, "active")):
        assert (await world.ask(op)).error_code == 0
        assert world.configs["link.state"] == state
    assert (await world.ask(LinkOp.PAUSE, "new")).error_code == ErrorCode.resource_not_found


async def test_promotion_is_asked_for_all_topics_or_some(world: World) -> None:
    world.api.add_link()
    world.add_copy("orders.a")
    world.add_copy("orders.b")
    world.api.add_topic("ordinary")
    ids = {name: topic_id for topic_id, name in world.api.topics.items()}
    assert (await world.ask(LinkOp.PROMOTE, topics=("orders.a",), validate_only=True)).topics == ("orders.a",)
    assert world.api.asked == {}
    answer = await world.ask(LinkOp.PROMOTE, topics=("orders.a",), fence=True)
    assert (answer.topics, world.api.asked) == (("orders.a",), {ids["orders.a"]: Promotion.ASKED})
    assert world.configs["link.fence.source"] == "true"
    answer = await world.ask(LinkOp.PROMOTE, force=True)
    assert answer.topics == ("orders.a", "orders.b")
    assert set(world.api.asked.values()) == {Promotion.FORCED}
    assert world.configs["link.fence.source"] == "false"
    assert [topic.lag for topic in answer.links[0].topics] == [0, 0], "what is left behind"
    for names in (("ordinary",), ("orders.c",)):
        refused = await world.ask(LinkOp.PROMOTE, topics=names)
        assert refused.error_code == ErrorCode.unknown_topic_or_partition
        assert refused.message == f"not copied by link 'old': {names[0]}"


async def test_a_promotion_of_a_paused_link_is_refused(world: World) -> None:
    world.api.add_link(link__state="paused")
    assert (await world.ask(LinkOp.PROMOTE)).message == "link 'old' has no linked topics"
    world.add_copy()
    answer = await world.ask(LinkOp.PROMOTE)
    assert (answer.error_code, world.api.asked) == (ErrorCode.policy_violation, {})
    assert (await world.ask(LinkOp.PROMOTE, force=True, fence=True)).error_code == ErrorCode.invalid_request
    assert (await world.ask(LinkOp.PROMOTE, force=True)).error_code == 0


async def test_a_link_with_topics_is_dropped_only_with_them(world: World) -> None:
    world.api.add_link()
    world.add_copy("orders.a")
    world.add_copy("orders.b")
    world.api.add_topic("ordinary")
    refused = await world.ask(LinkOp.DROP)
    assert refused.error_code == ErrorCode.policy_violation
    assert "2 linked topics: orders.a, orders.b" in (refused.message or "")
    assert (await world.ask(LinkOp.DROP, topics=("orders.a",))).error_code == ErrorCode.invalid_request
    assert (await world.ask(LinkOp.DROP, topics=("ordinary",), delete_topics=True)).error_code != 0
    one = await world.ask(LinkOp.DROP, topics=("orders.a",), delete_topics=True)
    assert (one.error_code, set(world.api.topics.values())) == (0, {"orders.b", "ordinary"})
    assert "topics" in world.configs, "the link stays"
    assert (await world.ask(LinkOp.DROP, delete_topics=True)).topics == ("orders.b",)
    assert (set(world.api.topics.values()), world.configs) == ({"ordinary"}, {})
    assert world.api.forgotten == ["old"]


async def test_a_drop_that_was_interrupted_is_repeated(world: World) -> None:
    world.api.add_link()
    world.add_copy()
    world.api.fail_before["delete_topics"].append(UnavailableError("planned"))
    assert (await world.ask(LinkOp.DROP, delete_topics=True)).error_code != 0
    assert world.configs["link.state"] == "paused", "its topics are not created again"
    world.api.fail_after["delete_topics"].append(OutcomeUnknownError("planned"))
    assert (await world.ask(LinkOp.DROP, delete_topics=True)).error_code == 0
    assert (world.api.topics, world.configs) == ({}, {})


async def test_a_topic_that_is_linked_during_a_drop_keeps_the_link(world: World) -> None:
    world.api.add_link()

    def race() -> None:
        world.api.before_append = lambda: world.add_copy()

    world.api.before_append = race
    answer = await world.ask(LinkOp.DROP)
    assert (answer.error_code, answer.message) == (
        ErrorCode.policy_violation, "link 'old' got topics meanwhile: drop it again"
    )  # fmt: skip


async def test_links_are_listed_without_and_shown_with_their_topics(world: World) -> None:
    world.api.add_link()
    world.api.add_link("second")
    world.api.sources.append(LinkSource("old", "c1", NOW_MS - 4_000, "no server answered"))
    behind = {"high_watermark": 60, "log_start_offset": 10, "copied_bytes": 500, "current_ms": NOW_MS - 30_000}
    world.add_copy("orders.a", **behind)
    world.api.copy("orders.a", 1, problem="the source was truncated", current_ms=0)
    world.api.find("orders.c", problem="a topic of this name is here already, and is no copy")
    world.api.find("orders.d")
    listed = await world.ask(LinkOp.LIST, "")
    assert [(link.name, link.topic_count, link.topics) for link in listed.links] == [("old", 1, ()), ("second", 0, ())]
    (shown,) = (await world.ask(LinkOp.SHOW)).links
    assert (shown.cluster_id, shown.seen_ms, shown.problem) == ("c1", 4_000, "no server answered")
    assert (shown.lag, shown.lag_bytes, shown.lag_ms) == (40, 400, NEVER)
    assert [(topic.name, topic.is_linked, topic.problems) for topic in shown.topics] == [
        ("orders.a", True, ("partition 1: the source was truncated",)),
        ("orders.c", False, ("a topic of this name is here already, and is no copy",)),
        ("orders.d", False, ("the controller has not created the copy yet",)),
    ]
    assert (await world.ask(LinkOp.SHOW, "third")).error_code == ErrorCode.resource_not_found


async def test_groups_are_shown_with_where_they_are_and_why_they_are_not_copied(world: World) -> None:
    world.api.add_link()
    world.api.sources.append(LinkSource("old", "c1", NOW_MS, "", "groups: not authorized"))
    app = LinkedGroup("old", "app", "classic", "Stable", "", 0, 0, NOW_MS - 3_000, 0, 4, 17)
    world.api.groups_found = [
        app,
        app._replace(group_id="asked-for-here", kind=""),
        app._replace(group_id="both", came_ms=NOW_MS, behind=0),
        app._replace(group_id="new", refusal=None, copied_ms=0),
        app._replace(link="another"),
        app._replace(group_id="late", behind=99, state="Empty"),
    ]
    (link,) = (await world.ask(LinkOp.GROUPS)).links
    assert link.groups_problem == "groups: not authorized"
    shown = [(each.group_id, each.has_members_there, each.is_here, each.behind, each.problem) for each in link.groups]
    assert shown == [
        ("new", True, False, 17, NOT_JUDGED),
        ("both", True, True, 0, ON_BOTH_SIDES),
        ("late", False, False, 99, ""),
        ("app", True, False, 17, ""),
    ]
    assert [each.copied_ms for each in link.groups] == [NEVER, 3_000, 3_000, 3_000]
    assert (await world.ask(LinkOp.GROUPS, "third")).error_code == ErrorCode.resource_not_found


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b'{"op":"format"}', b'{"op":"list","more":1}', b'{"op":"list","topics":[1]}', b"\xff",
     b'{"op":"list","configs":{"a":{}}}', b'{"op":' + b"[" * 100_000],
)  # fmt: skip
async def test_malformed_requests_are_refused(world: World, body: bytes) -> None:
    with pytest.raises(InvalidError, match="malformed request about links"):
        await world.handler(a_request(LINKS_KEY, 0, body))


async def test_requests_are_bounded(world: World) -> None:
    with pytest.raises(InvalidError, match="malformed request about links: size="):
        await world.handler(a_request(LINKS_KEY, 0, b" " * (BODY_BYTES_MAX + 1)))
    many = LinkRequest(op=LinkOp.PROMOTE, link="old", topics=("t",) * 10_001)
    with pytest.raises(InvalidError, match="names at most 10000 topics"):
        await world.handler(a_request(LINKS_KEY, 0, encode_link_request(many, "", 7)[HEADER_BYTES:]))
    with pytest.raises(CloseConnection):
        await world.handler(a_request(LINKS_KEY, 1, b""))


@pytest.mark.requirement("X2")
async def test_the_audit_log_has_a_line_for_each_change_without_values(world: World) -> None:
    world.api.add_link()
    world.add_copy()

    async def lines(op: LinkOp, **more: Any) -> list[tuple[str, int, str | None]]:
        request = world.request(op, **more)
        return [(each.resource, int(each.error_code), each.detail) for each in changed_link(
            request, await world.clock.run(world.handler(request))
        )]  # fmt: skip

    assert await lines(LinkOp.LIST) == await lines(LinkOp.ALTER, configs=SOURCE, validate_only=True) == []
    found = await lines(LinkOp.ALTER, configs={"sasl.password": "hunter2", "topics": "a"})
    assert found == [("LINK:old", 0, "alter configs sasl.password,topics")]
    found = await lines(LinkOp.PROMOTE, force=True)
    assert found == [("LINK:old", 0, "promote force"), ("TOPIC:orders", 0, "promote force")]
    found = await lines(LinkOp.DROP)
    assert found == [("LINK:old", int(ErrorCode.policy_violation), "drop")]
    assert "hunter2" not in json.dumps(found)
