"""Install, `helm test`, and clients inside and outside the cluster."""

from __future__ import annotations

import base64
import json
import urllib.request

from confluent_kafka.admin import AdminClient

from tests.kubernetes.cluster.load_balancer import PROXY_ANNOTATION
from tests.kubernetes.kubelet.network import HOST, OUTSIDE
from tests.kubernetes.kubelet.node_agent import NODES
from tests.kubernetes.scenarios import clients
from tests.kubernetes.scenarios.release import NAME, NAMESPACE, Release

METASTORE_SECRET, BUCKET_SECRET = "metastore", "bucket"
PARTS = {"host": "host", "port": "port", "user": "username", "password": "password", "database": "dbname"}
"""The chart's name of each part of the metastore's address -> its key in the Secret."""
ROLLOUT = "6m"
ADDRESS = "198.51.100.10"
"""The first that the stand-in for a load balancer gives."""
ZONES = {node.name: node.zone for node in NODES}


def secret(release: Release, name: str, values: dict[str, str]) -> None:
    """Create or replace it."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    lines = "\n".join(f"  {key}: {value}" for key, value in data.items())
    release.kubectl(
        "apply", "-f", "-", text=f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}\ndata:\n{lines}\n"
    )


def install(release: Release) -> str:
    """`helm install --wait`: hooks format and migrate, two agents become ready, each in its node's zone.

    The metastore's address is made of parts; `rolling-upgrade` changes to the whole address.
    """
    release.kubectl("create", "namespace", NAMESPACE)
    state = release.state
    secret(release, METASTORE_SECRET, {"metastore-url": state["metastore_url"], **state["metastore"]})
    secret(release, BUCKET_SECRET, {"access-key-id": state["access_key"], "secret-access-key": state["secret_key"]})
    release.values = {
        "image/repository": "headrace", "image/tag": "one",
        "metastore/existingSecret": METASTORE_SECRET, "bucket/existingSecret": BUCKET_SECRET,
        "bucket/url": f"s3://{state['bucket']}/cluster", "bucket/endpoint": state["s3_url"],
        "bucket/region": "us-east-1",
        "agents/replicas": 2, "agents/resources/requests/cpu": "500m",
        **{f"metastore/parts/{part}": key for part, key in PARTS.items()},
    }  # fmt: skip
    release.upgrade(timeout=ROLLOUT)
    release.wait_for_agents(2)
    zones = zones_of_agents(release)
    assert len(set(zones)) == 2, f"both agents in one zone: {zones}"
    return f"2 agents ready in {' and '.join(zones)}, their pods' labels; metastore by host, user, password, database"


def zones_of_agents(release: Release) -> list[str]:
    """The same as an agent tells; each must be that of the agent's node."""
    pods = release.ready_agents()
    with urllib.request.urlopen(f"http://{pods[0]['status']['podIP']}:9644/v1/status", timeout=10) as response:
        told = {agent["host"]: agent["rack"] for agent in json.load(response)["agents"]}
    expected = {pod["status"]["podIP"]: ZONES[pod["spec"]["nodeName"]] for pod in pods}
    assert told == expected, f"zones of the agents: {told}, of their nodes: {expected}"
    return sorted(told.values())


def helm_test(release: Release) -> str:
    """The chart's own test: a pod creates a topic, produces, consumes, deletes the topic."""
    output = release.helm("test", NAME, "--timeout", "2m")
    assert "Succeeded" in output, output
    return "the test pod succeeded"


def inside(release: Release) -> str:
    """Clients in a pod, by the Service's name."""
    with clients.inside(release) as watched:
        pass
    return str(watched)


def outside(release: Release) -> str:
    """Upgrade to one external address; a producer, a reader and a group that reach only that address."""
    values = {"externalAccess/type": "loadBalancer", "externalAccess/loadBalancer/host": ADDRESS}
    release.upgrade(values, timeout=ROLLOUT)
    release.wait_for_agents(2, 180)  # those of before do not advertise the address

    def given() -> str | None:
        service = release.get("services", f"{NAME}-external")
        ingress = service["status"]["loadBalancer"].get("ingress")
        return ingress[0]["ip"] if ingress else None

    found = release.wait_for("an external address", given)
    assert found == ADDRESS, found
    with clients.outside(release, f"{ADDRESS}:9092") as watched:
        pass
    return str(watched)


def proxied(release: Release) -> str:
    """The same, and the load balancer says who the client is: its group has the client's own address."""
    balancer = "externalAccess/loadBalancer"
    release.upgrade(
        {
            "externalAccess/type": "loadBalancer", f"{balancer}/host": ADDRESS, f"{balancer}/proxyProtocol": True,
            f"{balancer}/annotations": {PROXY_ANNOTATION: "v2"},
            "networkPolicy/proxies": [{"ipBlock": {"cidr": f"{HOST}/32"}}],
        },
        timeout=ROLLOUT,
    )  # fmt: skip
    release.wait_for_agents(2, 180)
    with clients.outside(release, f"{ADDRESS}:9092") as watched:
        admin = AdminClient({"bootstrap.servers": f"{ADDRESS}:9092"})
        group = watched.group
        (member,) = admin.describe_consumer_groups([group])[group].result(60).members
    assert member.host.removeprefix("/") == OUTSIDE, member.host
    return f"a member's host is {member.host}, the client's own; {watched}"
