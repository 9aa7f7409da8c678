"""A metrics server that reports what the test sets: metrics.k8s.io and custom.metrics.k8s.io, by API aggregation.

Place: services.py starts it; HorizontalPodAutoscalers read it through kube-apiserver. A scenario sets numbers with
`PUT /set {"cpu": "250m", "custom": {"name": "0.5"}}` on the same port.
Invariant: each running pod reports the same numbers; a number that is not set is absent, as of a pod that has none.
"""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import Any

from aiohttp import web

from load.self_signed import write_certificate
from tests.kubernetes.cluster.api_client import ApiClient
from tests.kubernetes.kubelet.environment import Json

PORT = 6444
NAMESPACE = "kube-system"
NAME = "test-metrics"
RESOURCES = ("metrics.k8s.io", "v1beta1"), ("custom.metrics.k8s.io", "v1beta2"), ("custom.metrics.k8s.io", "v1beta1")


class MetricsApi:
    """Listens on `address`:PORT."""

    def __init__(self, client: ApiClient, address: str) -> None:
        self._client, self._address = client, address
        self._cpu: str | None = None
        self._custom: dict[str, str] = {}

    async def start(self, folder: Path) -> None:
        """Write a certificate to `folder`, listen, and register with the API server."""
        app = web.Application()
        app.router.add_put("/set", self._set)
        for group, version in RESOURCES:
            app.router.add_get(f"/apis/{group}/{version}", self._resources)
        app.router.add_get("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods", self._pods)
        for version in ("v1beta1", "v1beta2"):
            path = f"/apis/custom.metrics.k8s.io/{version}/namespaces/{{namespace}}/pods/{{pod}}/{{metric}}"
            app.router.add_get(path, self._custom_values)
        certificate, key = write_certificate(folder, [f"{NAME}.{NAMESPACE}.svc"])
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, self._address, PORT, ssl_context=context).start()
        await self._register()

    async def _register(self) -> None:
        metadata = {"name": NAME, "namespace": NAMESPACE}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"ports": [{"port": 443, "targetPort": PORT}]},
        }
        await self._client.create(f"/api/v1/namespaces/{NAMESPACE}/services", service)
        endpoints = {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": metadata | {"labels": {"kubernetes.io/service-name": NAME}},
            "ports": [{"port": PORT, "protocol": "TCP", "name": ""}],
            "endpoints": [{"addresses": [self._address], "conditions": {"ready": True}}],
        }  # fmt: skip
        await self._client.create(f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices", endpoints)
        for group, version in RESOURCES:
            spec = {
                "group": group, "version": version, "service": metadata, "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100, "versionPriority": 100,
            }  # fmt: skip
            body = {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{version}.{group}"},
                "spec": spec,
            }
            await self._client.create("/apis/apiregistration.k8s.io/v1/apiservices", body)

    async def _set(self, request: web.Request) -> web.Response:
        body = await request.json()
        self._cpu, self._custom = body.get("cpu"), body.get("custom", {})
        return web.json_response({})

    async def _resources(self, request: web.Request) -> web.Response:
        _, group, version = request.path.strip("/").split("/")
        if group == "metrics.k8s.io":
            found = [
                {"name": "pods", "namespaced": True, "kind": "PodMetrics", "verbs": ["get", "list"], "singularName": ""}
            ]
        else:
            found = [
                {
                    "name": f"pods/{name}",
                    "namespaced": True,
                    "kind": "MetricValueList",
                    "verbs": ["get"],
                    "singularName": "",
                }
                for name in self._custom
            ]
        return web.json_response(
            {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{group}/{version}", "resources": found}
        )

    async def _running(self, request: web.Request) -> list[Json]:
        query = {"labelSelector": request.query.get("labelSelector", "")}
        text = "&".join(f"{key}={_quoted(value)}" for key, value in query.items() if value)
        pods = await self._client.get(f"/api/v1/namespaces/{request.match_info['namespace']}/pods?{text}")
        return [pod for pod in pods["items"] if pod.get("status", {}).get("phase") == "Running"]

    async def _pods(self, request: web.Request) -> web.Response:
        pods = await self._running(request) if self._cpu is not None else []
        items = [
            {"metadata": _name(pod), "timestamp": _now(), "window": "15s", "containers": [
                {"name": each["name"], "usage": {"cpu": self._cpu, "memory": "100Mi"}}
                for each in pod["spec"]["containers"]
            ]} for pod in pods
        ]  # fmt: skip
        return web.json_response(
            {"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items}
        )

    async def _custom_values(self, request: web.Request) -> web.Response:
        metric, version = request.match_info["metric"], request.path.split("/")[3]
        if metric not in self._custom:
            return web.json_response({"kind": "Status", "status": "Failure", "code": 404}, status=404)
        items = []
        for pod in await self._running(request):
            about: dict[str, Any] = {"metricName": metric} if version == "v1beta1" else {"metric": {"name": metric}}
            described = {"kind": "Pod", "apiVersion": "/v1", **_name(pod)}
            items.append({"describedObject": described, "timestamp": _now(), "value": self._custom[metric], **about})
        body = {
            "kind": "MetricValueList",
            "apiVersion": f"custom.metrics.k8s.io/{version}",
            "metadata": {},
            "items": items,
        }
        return web.json_response(body)


def _name(pod: Json) -> Json:
    return {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}


def _quoted(text: str) -> str:
    return text.replace("%", "%25").replace(",", "%2C").replace("=", "%3D").replace("!", "%21").replace(" ", "%20")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
