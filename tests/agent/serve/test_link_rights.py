"""X14: a link creates only what its creator may create and write, under the rules of all topics."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.cluster.controller.link_steps import WantedCopy
from headrace.agent.serve.link_rights import LinkRights
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.config.settings import STANDARD_AUTHORIZER, Settings
from headrace.metastore.api.topics import NewTopic
from tests.agent.access.acls import a_grant
from tests.agent.access.authorization.test_data_path import set_acls
from tests.agent.cluster.standing_view import StandingView

pytestmark = pytest.mark.requirement("X14", "X2")


class World:
    """An authorizer, and what alice and bob may do."""

    def __init__(self, **settings: str) -> None:
        self.view = StandingView(4, node_id=1, broker_epoch=1)
        authorizer = Authorizer(Settings(**settings), self.view)  # type: ignore[arg-type]
        self.rights = LinkRights(authorizer, lambda: TopicDefaults(1, 1, topics_max=2))

    def grant(self, *grants: tuple[str, AclOperation, AclResource, str]) -> None:
        acls = (replace(a_grant(operation, name, kind), principal=who) for who, operation, kind, name in grants)
        set_acls(self.view, frozenset(acls))

    def why_not(self, *names: str, creator: str = "User:alice") -> list[str | None]:
        wanted = [WantedCopy(creator, NewTopic(name, uuid.uuid4(), 1, {})) for name in names]
        return self.rights.why_not(self.view.image, wanted)


def test_the_creator_needs_create_and_write() -> None:
    world = World(authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:root")
    topic, cluster = AclResource.TOPIC, AclResource.CLUSTER
    denied = "User:alice, who set up the link, may not {} this topic"
    assert world.why_not("a") == [denied.format("CREATE")]
    world.grant(("User:alice", AclOperation.CREATE, topic, "a"))
    assert world.why_not("a") == [denied.format("WRITE to")]
    both = ("User:alice", AclOperation.WRITE, topic, "a")
    world.grant(("User:alice", AclOperation.CREATE, cluster, "kafka-cluster"), both)
    assert world.why_not("b", "a") == [denied.format("WRITE to"), None]
    assert world.why_not("a", creator="User:bob")[0] is not None
    assert world.why_not("a", creator="User:root") == [None]


def test_names_and_limits_are_those_of_all_topics() -> None:
    world = World()
    assert world.why_not("a b", "a") == [
        "the topic name has characters other than ASCII letters, digits, '.', '_' and '-'", None
    ]  # fmt: skip
    assert world.why_not("__cluster_metadata") == ["the topic is reserved for the cluster"]
    assert world.why_not("a.b", "a_b")[0] == "topic 'a.b' collides with topic 'a_b'"
    assert world.why_not("a", "b", "c") == ["the cluster may have no more: max.topics=2"] * 3
