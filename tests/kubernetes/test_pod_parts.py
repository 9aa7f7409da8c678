"""Volumes, images, names and Spark's entrypoint: the parts of the test kubelet that need no cluster."""

from __future__ import annotations

import base64
import struct
import subprocess
from pathlib import Path

import pytest

from headrace.agent.listener.proxy_header import ProxyHeader, read_proxy_header
from tests.kubernetes.cluster.dns_server import ServiceNames, answer
from tests.kubernetes.cluster.load_balancer import proxy_header
from tests.kubernetes.kubelet.environment import Json, MissingReferenceError
from tests.kubernetes.kubelet.images import UnknownImageError, image_of, write_accounts, write_commands
from tests.kubernetes.kubelet.pod_objects import references
from tests.kubernetes.kubelet.spark_entrypoint import executor_command
from tests.kubernetes.kubelet.volumes import fill, mounts

OBJECTS: dict[tuple[str, str], Json] = {
    ("ConfigMap", "c"): {"data": {"a": "1", "b": "2"}},
    ("Secret", "s"): {"data": {"key": base64.b64encode(b"x").decode()}},
}


async def _token(pod: Json, audience: str | None, seconds: int) -> str:
    return f"token-for-{audience}"


async def _fill(folder: Path, *volumes: Json) -> dict[str, Path]:
    pod: Json = {"metadata": {"labels": {"l": "v"}}, "spec": {"volumes": list(volumes)}}
    return await fill(folder, pod, lambda kind, name: OBJECTS.get((kind, name)), _token)


async def test_volumes_hold_what_the_pod_asks_for(tmp_path: Path) -> None:
    sources = [
        {"serviceAccountToken": {"path": "token", "audience": "x"}},
        {"configMap": {"name": "c", "items": [{"key": "a", "path": "deep/a"}]}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    ]
    found = await _fill(
        tmp_path,
        {"name": "empty", "emptyDir": {}},
        {"name": "all", "configMap": {"name": "c"}},
        {"name": "one", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "many", "projected": {"sources": sources}},
    )
    assert list(found["empty"].iterdir()) == []
    assert {path.name: path.read_text() for path in found["all"].iterdir()} == {"a": "1", "b": "2"}
    assert (found["one"] / "key").read_text() == "x"
    assert (found["one"] / "key").stat().st_mode & 0o777 == 0o400
    many = found["many"]
    texts = [(many / name).read_text() for name in ("token", "deep/a", "labels")]
    assert texts == ["token-for-x", "1", 'l="v"']


async def test_a_missing_object_or_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingReferenceError, match="Secret absent"):
        await _fill(tmp_path, {"name": "v", "secret": {"secretName": "absent"}})
    with pytest.raises(MissingReferenceError, match="no key z"):
        await _fill(tmp_path, {"name": "v", "configMap": {"name": "c", "items": [{"key": "z", "path": "z"}]}})
    with pytest.raises(NotImplementedError, match="nfs"):
        await _fill(tmp_path, {"name": "v", "nfs": {}})
    assert (await _fill(tmp_path, {"name": "v", "secret": {"secretName": "absent", "optional": True}}))["v"].is_dir()


def test_mounts_name_their_folder(tmp_path: Path) -> None:
    container = {"volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "s", "readOnly": True}]}
    assert mounts(container, {"v": tmp_path}) == [{"source": f"{tmp_path}/s", "target": "/x", "read_only": True}]


def test_references_of_a_pod_are_found_everywhere() -> None:
    spec = {
        "volumes": [{"secret": {"secretName": "a"}}, {"projected": {"sources": [{"configMap": {"name": "b"}}]}}],
        "containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "c", "key": "k"}}}]}],
    }
    assert set(references(spec)) == {("Secret", "a"), ("ConfigMap", "b"), ("Secret", "c")}


def test_an_unknown_image_is_refused() -> None:
    assert image_of("registry.example:5000/team/headrace:1.0").entrypoint == ["headrace"]
    assert image_of("headrace@sha256:0").entrypoint == ["headrace"]
    with pytest.raises(UnknownImageError):
        image_of("headraces:1.0")


def _query(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def _answer(names: ServiceNames, name: str, kind: int = 1) -> tuple[int, list[str]]:
    """(code, addresses)."""
    reply = answer(_query(name, kind), names.look_up)
    number, flags, _, count, _, _ = struct.unpack_from("!HHHHHH", reply)
    assert number == 7
    ends = [len(reply) - 16 * left for left in range(count)]
    return flags & 15, sorted(".".join(str(byte) for byte in reply[end - 4 : end]) for end in ends)


def test_names_of_services() -> None:
    names = ServiceNames()
    names.services = {
        ("ns", "one"): {"spec": {"clusterIP": "10.96.0.9"}},
        ("ns", "headless"): {"spec": {"clusterIP": "None"}},
    }
    endpoints = [
        {"addresses": ["10.77.1.1"], "hostname": "a", "conditions": {"ready": True}},
        {"addresses": ["10.77.1.2"], "hostname": "b", "conditions": {"ready": True}},
        {"addresses": ["10.77.1.3"], "hostname": "c", "conditions": {"ready": False}},
    ]
    metadata = {"namespace": "ns", "labels": {"kubernetes.io/service-name": "headless"}}
    names.slices = {"u": {"metadata": metadata, "endpoints": endpoints, "ports": [{"name": "kafka", "port": 9092}]}}
    assert _answer(names, "one.ns.svc.cluster.local") == (0, ["10.96.0.9"])
    assert _answer(names, "one.ns.svc.cluster.local", kind=28) == (0, [])
    assert _answer(names, "headless.ns.svc.cluster.local") == (0, ["10.77.1.1", "10.77.1.2"])
    assert _answer(names, "b.headless.ns.svc.cluster.local") == (0, ["10.77.1.2"])
    assert _answer(names, "c.headless.ns.svc.cluster.local") == (3, [])
    assert _answer(names, "absent.ns.svc.cluster.local") == (3, [])
    assert _answer(names, "example.com") == (3, [])
    assert names.endpoints("ns", "headless", "kafka") == [("10.77.1.1", 9092), ("10.77.1.2", 9092)]


def test_an_executor_starts_as_spark_asks() -> None:
    names = ("DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP", "RESOURCE_PROFILE_ID")
    environment = {f"SPARK_{name}": name for name in names} | {
        "SPARK_EXECUTOR_MEMORY": "1g", "SPARK_EXECUTOR_POD_NAME": "pod", "SPARK_HOME": "/spark", "JAVA_HOME": "/java",
        "SPARK_JAVA_OPT_10": "-Dlast", "SPARK_JAVA_OPT_2": "-Dfirst",
    }  # fmt: skip
    command = executor_command(environment)
    assert command[:7] == ["/java/bin/java", "-Dfirst", "-Dlast", "-Xms1g", "-Xmx1g", "-cp", "/spark/jars/*"]
    assert command[command.index("--podName") + 1] == "pod"


def test_commands_and_accounts_of_the_images(tmp_path: Path) -> None:
    write_commands(tmp_path / "bin")
    write_accounts(tmp_path / "passwd")
    done = subprocess.run([tmp_path / "bin" / "headrace", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("headrace ")
    assert (tmp_path / "bin" / "headrace-spark-compaction").stat().st_mode & 0o111
    homes = {line.split(":")[2]: line.split(":")[5] for line in (tmp_path / "passwd").read_text().splitlines()}
    assert homes["185"] == "/home/spark"
    assert "0" in homes


def test_the_load_balancer_says_who_the_client_is() -> None:
    header = proxy_header(("203.0.113.5", 4000), ("198.51.100.10", 9092))
    assert read_proxy_header(header + b"request") == ProxyHeader(("203.0.113.5", 4000), len(header))
