"""What pods refer to: ConfigMaps, Secrets, Services and tokens, read from the API server.

Place: pod_worker.py reads before each start of a container.
Invariant: only what a pod's spec names is read; absence is remembered as absence until the next reading.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.kubernetes.cluster.api_client import ApiClient
from tests.kubernetes.kubelet.environment import Json, Values
from tests.kubernetes.kubelet.volumes import Object, contents

_KINDS = {"configMapRef": "ConfigMap", "configMapKeyRef": "ConfigMap", "configMap": "ConfigMap"}
_KINDS |= {"secretRef": "Secret", "secretKeyRef": "Secret", "secret": "Secret"}
_PATHS = {"ConfigMap": "configmaps", "Secret": "secrets"}


def references(spec: object) -> Iterator[tuple[str, str]]:
    """(kind, name) of each ConfigMap and Secret in a pod's spec."""
    if isinstance(spec, dict):
        for key, value in spec.items():
            if key in _KINDS and isinstance(value, dict):
                yield _KINDS[key], value.get("name") or value.get("secretName", "")
            else:
                yield from references(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from references(value)


class PodObjects:
    """Pod objects of all pods of this machine."""

    def __init__(self, client: ApiClient, resolver: str) -> None:
        """`resolver`: the address of the cluster's DNS."""
        self._client, self._resolver = client, resolver
        self._objects: dict[tuple[str, str, str], Json | None] = {}
        self._services: list[Json] = []

    async def read(self, pod: Json) -> None:
        """Everything that the pod names."""
        namespace = pod["metadata"]["namespace"]
        for kind, name in set(references(pod["spec"])):
            path = f"/api/v1/namespaces/{namespace}/{_PATHS[kind]}/{name}"
            self._objects[namespace, kind, name] = await self._client.find(path)
        self._services = (await self._client.get("/api/v1/services"))["items"]

    def found(self, pod: Json) -> Object:
        """Objects of the pod's namespace."""
        namespace = pod["metadata"]["namespace"]
        return lambda kind, name: self._objects.get((namespace, kind, name))

    def values(self, pod: Json) -> Values:
        """Their values as text."""
        found = self.found(pod)

        def read(kind: str, name: str) -> dict[str, str] | None:
            item = found(kind, name)
            return None if item is None else {key: value.decode() for key, value in contents(kind, item).items()}

        return read

    def services(self, pod: Json) -> list[Json]:
        """Return the services of the pod's namespace, and `kubernetes`."""
        namespaces = {pod["metadata"]["namespace"], "default"}
        own = [each for each in self._services if each["metadata"]["namespace"] in namespaces]
        return [
            each
            for each in own
            if each["metadata"]["namespace"] == pod["metadata"]["namespace"] or each["metadata"]["name"] == "kubernetes"
        ]

    async def token(self, pod: Json, audience: str | None, seconds: int) -> str:
        """Bound to the pod."""
        namespace, account = pod["metadata"]["namespace"], pod["spec"].get("serviceAccountName", "default")
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        spec: Json = {
            "expirationSeconds": max(seconds, 600),
            "boundObjectRef": bound,
            "audiences": [audience] if audience else [],
        }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str((await self._client.create(path, body))["status"]["token"])

    def resolver(self, namespace: str) -> str:
        """A pod's /etc/resolv.conf."""
        return (
            f"search {namespace}.svc.cluster.local svc.cluster.local cluster.local\n"
            f"nameserver {self._resolver}\noptions ndots:5\n"
        )
