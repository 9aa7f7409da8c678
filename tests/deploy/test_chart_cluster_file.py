"""The chart's topics, users, ACLs and quotas: one file of `headrace cluster apply`, its Job, and the test for drift."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.client.acls import Acl
from headrace.cli.commands import make_parser
from headrace.cli.described.diff import Scope, make_plan
from headrace.cli.described.reading import read_description
from headrace.cli.described.state import ClusterState, ObjectKind, TopicState, UserState
from tests.deploy.rendering import Object, environment, objects, one, pods
from tests.deploy.test_chart_refusals import render

pytestmark = pytest.mark.needs("helm")
JOB, TEST = "Job/streams-cluster-file", "Pod/streams-test-drift"


def _container(found: list[Object], key: str) -> Object:
    (container,) = pods(found)[key]["containers"]
    return container  # type: ignore[no-any-return]


def test_the_values_are_a_description(tmp_path: Path) -> None:
    config_map = one(objects("full"), "ConfigMap", "-cluster-file")
    (file := tmp_path / "cluster.yaml").write_text(config_map["data"]["cluster.yaml"])
    state = read_description([str(file)]).state
    password = "${file:/etc/headrace-users/billing-password/secret}"
    acls = {Acl("topic", "orders", "literal", "User:billing", "*", op, "allow") for op in ("Read", "Describe")}
    assert state == ClusterState(
        topics={"orders": TopicState(12, None, {"retention.ms": "604800000", "cleanup.policy": "compact,delete"})},
        acls=frozenset(acls),
        users={("billing", "SCRAM-SHA-512"): UserState(None, password)},
        quotas={(("user", "billing"),): {"producer_byte_rate": 10485760.0}},
    )
    assert len(make_plan(state, ClusterState()).steps) == 5


def test_the_job_applies_it_and_helm_test_plans_the_same() -> None:
    found = objects("full")
    for key, action in ((JOB, "apply"), (TEST, "plan")):
        container = _container(found, key)
        words = [*container["command"][1:], *container["args"]]
        args = make_parser(words).parse_args(words)
        assert (args.file, args.bootstrap_server) == (["/etc/headrace-cluster/cluster.yaml"], "streams:9092")
        assert args.prune == [Scope(ObjectKind.ACL, "User:billing")]
        assert words[:2] == ["cluster", action]
        assert args.set_passwords == (action == "apply"), "a password is never drift"
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pods(found)[key]["volumes"]}
        assert volumes[mounts["/etc/headrace-users/billing-password"]]["secret"] == {"secretName": "billing-password"}
        assert volumes[mounts["/etc/headrace-client"]]["secret"] == {"secretName": "admin-client"}
        assert str(args.config).startswith("/etc/headrace-client/")
        assert volumes[mounts["/etc/headrace-cluster"]]["configMap"] == {"name": "streams-cluster-file"}
    hooks = {item["metadata"]["name"]: item["metadata"]["annotations"]["helm.sh/hook"] for item in _hooks(found)}
    assert hooks["streams-cluster-file"] == "post-install,post-upgrade"
    assert hooks["streams-test-drift"] == "test"
    assert not one(found, "ConfigMap", "-cluster-file")["metadata"].get("annotations"), "helm test finds it later"


def test_its_pods_reach_the_agents_and_no_pod_reaches_the_job() -> None:
    found = objects("full")
    (rule,) = one(found, "NetworkPolicy", "streams-cluster-file")["spec"]["ingress"]
    (peer,) = rule["from"]
    job = one(found, "Job", "-cluster-file")["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= job.items()
    assert "ingress" not in one(found, "NetworkPolicy", "-cluster-file-job")["spec"]


def test_nothing_is_made_without_values() -> None:
    assert not [item for item in objects("minimal") if "cluster-file" in item["metadata"]["name"]]
    assert "Pod/hr-headrace-test-drift" not in pods(objects("minimal"))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (("topics[0].title=x",), "title"),
        (("topics[0].name=x", "topics[0].partitions=0"), "partitions"),
        (("users[0].name=x",), "existingSecret"),
        (("users[0].name=x", "users[0].existingSecret=s", "users[0].password=p"), "password"),
        (("acls[0].principal=User:x",), "resource"),
        (("clusterFile.flags[0]=--prune",), "flags"),
        (("clusterFile.flags[0]=--yes",), "flags"),
    ],
)
def test_a_wrong_entry_is_refused_by_its_key(settings: tuple[str, ...], key: str) -> None:
    status, message = render(*settings)
    assert status != 0
    assert key in message


def _hooks(found: list[Object]) -> list[Object]:
    return [item for item in found if "helm.sh/hook" in item["metadata"].get("annotations", {})]


def test_clients_of_the_admin_listener_are_allowed_what_an_emergency_needs(tmp_path: Path) -> None:
    """They are anonymous, so without an ACL an authorizer refuses them everything."""
    (file := tmp_path / "cluster.yaml").write_text(
        one(objects("secure"), "ConfigMap", "-cluster-file")["data"]["cluster.yaml"]
    )
    state = read_description([str(file)]).state
    assert state.acls == {Acl("cluster", "kafka-cluster", "literal", "User:ANONYMOUS", "127.0.0.1", "All", "allow")}
    (agent,) = pods(objects("secure"))["Deployment/hr-headrace-agent"]["containers"]
    assert environment(agent)["HEADRACE_LISTENERS"].endswith(",ADMIN://127.0.0.1:9096")
