"""A container's environment, as Kubernetes makes it."""

from __future__ import annotations

import pytest

from tests.kubernetes.kubelet.environment import (
    Json,
    MissingReferenceError,
    environment_of,
    expand,
    field_of,
    quantity,
)

SECRET = {"password": "p", "user": "u"}


def _values(kind: str, name: str) -> dict[str, str] | None:
    return {("Secret", "s"): SECRET, ("ConfigMap", "c"): {"A": "1", "B": "2"}}.get((kind, name))


def _pod(**spec: object) -> Json:
    metadata = {"name": "n", "namespace": "ns", "uid": "x", "labels": {"zone/of": "z"}}
    return {"metadata": metadata, "spec": {"nodeName": "node", **spec}, "status": {"podIP": "10.0.0.1"}}


def _environment(container: Json, pod: Json | None = None, services: list[Json] | None = None) -> dict[str, str]:
    return environment_of(pod or _pod(), container, {"PATH": "/bin"}, services or [], _values)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)/$(B)", "1/2"),
        ("$(C)", "$(C)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
    ],
)
def test_references_are_expanded(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expanded


def test_a_variable_refers_to_those_before_it_only() -> None:
    entries = [{"name": "X", "value": "$(Y)"}, {"name": "Y", "value": "y"}, {"name": "Z", "value": "$(Y)$(X)"}]
    found = _environment({"env": entries})
    assert (found["X"], found["Z"]) == ("$(Y)", "y$(Y)")


def test_later_sources_override_earlier_ones() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "c"}}, {"prefix": "P_", "secretRef": {"name": "s"}}],
        "env": [{"name": "B", "value": "3"}],
    }
    found = _environment(container)
    assert found == {"PATH": "/bin", "A": "1", "B": "3", "P_password": "p", "P_user": "u"}


def test_fields_and_keys_are_read() -> None:
    entries = [
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "ZONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['zone/of']"}}},
        {"name": "NONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['absent']"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "user"}}},
        {"name": "LEFT", "valueFrom": {"configMapKeyRef": {"name": "absent", "key": "k", "optional": True}}},
        {"name": "URL", "value": "x://$(KEY)@$(IP)"},
    ]
    found = _environment({"env": entries})
    assert found["URL"] == "x://u@10.0.0.1"
    assert (found["NODE"], found["ZONE"], found["NONE"]) == ("node", "z", "")
    assert "LEFT" not in found


@pytest.mark.parametrize(
    "container",
    [
        {"envFrom": [{"secretRef": {"name": "absent"}}]},
        {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "absent"}}}]},
        {"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]},
    ],
)
def test_a_missing_source_keeps_the_container_waiting(container: Json) -> None:
    with pytest.raises(MissingReferenceError):
        _environment(container)


def test_services_are_announced_unless_the_pod_refuses() -> None:
    def service(name: str, namespace: str, address: str) -> Json:
        return {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"clusterIP": address, "ports": [{"port": 9092}]},
        }

    services = [service("my-db", "ns", "10.96.0.9"), service("kubernetes", "default", "10.96.0.1")]
    services.append(service("headless", "ns", "None"))
    open_pod, closed_pod = (
        _environment({}, services=services),
        _environment({}, _pod(enableServiceLinks=False), services),
    )
    assert open_pod["MY_DB_SERVICE_HOST"] == "10.96.0.9"
    assert open_pod["MY_DB_PORT"] == "tcp://10.96.0.9:9092"
    assert not [name for name in open_pod if name.startswith("HEADLESS")]
    assert "MY_DB_SERVICE_HOST" not in closed_pod
    assert closed_pod["KUBERNETES_SERVICE_HOST"] == "10.96.0.1"


def test_resources_are_rounded_up_in_their_divisor() -> None:
    container = {
        "resources": {"limits": {"memory": "1536Mi", "cpu": "1500m"}},
        "env": [
            {"name": "M", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        ],
    }
    found = _environment(container)
    assert (found["M"], found["C"]) == ("1536", "2")


def test_quantities() -> None:
    assert [quantity(text) for text in ("250m", "2", "2Gi", "1k")] == [0.25, 2, 2**31, 1000]
    with pytest.raises(ValueError, match="not a quantity"):
        quantity("2Q")


def test_labels_as_a_file() -> None:
    assert field_of(_pod(), "metadata.labels") == 'zone/of="z"'
