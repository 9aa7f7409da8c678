"""The volumes of a pod, as folders.

Place: pod_worker.py fills them before the first container starts; container_init.py mounts them.
Invariant: nothing starts before all that is not optional exists. Contents are written once and do not follow later
changes of their ConfigMap or Secret. A kind of volume that is not written here is refused by its name.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from tests.kubernetes.kubelet.environment import Json, MissingReferenceError, field_of

Token = Callable[[Json, str | None, int], Awaitable[str]]
"""(pod, audience, seconds) -> a token of the pod's service account."""
Object = Callable[[str, str], Json | None]
"""(`ConfigMap` or `Secret`, name) -> the object in the pod's namespace."""

FILE_MODE = 0o644


async def fill(folder: Path, pod: Json, objects: Object, token: Token) -> dict[str, Path]:
    """Volume name -> its folder, below `folder`."""
    made = {}
    group = pod["spec"].get("securityContext", {}).get("fsGroup")
    for volume in pod["spec"].get("volumes", ()):
        place = folder / volume["name"]
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o777)
        for name, mode, content in await _files(volume, pod, objects, token):
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(mode | (0o040 if group is not None else 0))
            if group is not None:
                os.chown(path, -1, group)
        made[volume["name"]] = place
    return made


File = tuple[str, int, bytes]
"""(path, mode, content)."""


async def _files(volume: Json, pod: Json, objects: Object, token: Token) -> list[File]:
    if "emptyDir" in volume:
        return []
    if "projected" in volume:
        mode = volume["projected"].get("defaultMode", FILE_MODE)
        return [
            file
            for source in volume["projected"]["sources"]
            for file in await _source(source, mode, pod, objects, token)
        ]
    kinds = {"configMap": "name", "secret": "secretName", "downwardAPI": ""}
    for kind, name_key in kinds.items():
        if kind in volume:
            spec = dict(volume[kind])
            spec["name"] = spec.get(name_key, "")
            return await _source({kind: spec}, spec.get("defaultMode", FILE_MODE), pod, objects, token)
    raise NotImplementedError(f"volume {volume['name']}: {sorted(set(volume) - {'name'})}")


async def _source(source: Json, mode: int, pod: Json, objects: Object, token: Token) -> list[File]:
    if "serviceAccountToken" in source:
        spec = source["serviceAccountToken"]
        text = await token(pod, spec.get("audience"), spec.get("expirationSeconds", 3600))
        return [(spec["path"], mode, text.encode())]
    if "downwardAPI" in source:
        items = source["downwardAPI"].get("items", ())
        return [
            (item["path"], item.get("mode", mode), field_of(pod, item["fieldRef"]["fieldPath"]).encode())
            for item in items
        ]
    kind, spec = ("ConfigMap", source["configMap"]) if "configMap" in source else ("Secret", source["secret"])
    found = objects(kind, spec["name"])
    if found is None:
        if spec.get("optional"):
            return []
        raise MissingReferenceError(f"{kind} {spec['name']} does not exist")
    data = contents(kind, found)
    if "items" not in spec:
        return [(key, mode, value) for key, value in data.items()]
    missing = [item["key"] for item in spec["items"] if item["key"] not in data]
    if missing and not spec.get("optional"):
        raise MissingReferenceError(f"{kind} {spec['name']} has no key {missing[0]}")
    return [(item["path"], item.get("mode", mode), data[item["key"]]) for item in spec["items"] if item["key"] in data]


def contents(kind: str, found: Mapping[str, Any]) -> dict[str, bytes]:
    """The values of a ConfigMap or Secret."""
    data = found.get("data") or {}
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in data.items()}
    binary = {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
    return {key: value.encode() for key, value in data.items()} | binary


def mounts(container: Json, folders: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Return what container_init.py binds."""
    binds = []
    for mount in container.get("volumeMounts", ()):
        source = folders[mount["name"]]
        if "subPathExpr" in mount:
            raise NotImplementedError("subPathExpr")
        if mount.get("subPath"):
            source = source / mount["subPath"]
            if not source.exists():
                source.mkdir(parents=True)
        binds.append({"source": str(source), "target": mount["mountPath"], "read_only": mount.get("readOnly", False)})
    return binds
