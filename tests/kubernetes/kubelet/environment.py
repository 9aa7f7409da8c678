"""The environment of a container, from its pod's spec.

Place: read by container.py before a container starts. Pure: ConfigMaps, Secrets and Services are given.
Invariant: later sources override earlier ones: the image, Services, `envFrom` in order, `env` in order, as in
Kubernetes (pkg/kubelet/kubelet_pods.go). `$(NAME)` refers to what comes before, `$$` is a dollar sign, and a reference
to an unknown name stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Json = dict[str, Any]
Values = Callable[[str, str], Mapping[str, str] | None]
"""(`ConfigMap` or `Secret`, name) -> its values; None if there is no such object."""

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]+)\))")
_BY_KEY = re.compile(r"(metadata\.(?:labels|annotations))\['([^']+)'\]")
_SUFFIXES = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class MissingReferenceError(Exception):
    """A ConfigMap, a Secret or a key that is not optional is missing: the container waits."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` replaced by the variable's value."""

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(replaced, text)


def environment_of(
    pod: Json, container: Json, image: Mapping[str, str], services: Iterable[Json], values: Values
) -> dict[str, str]:
    """All variables; MissingReferenceError if a source does not exist yet."""
    found = dict(image)
    found |= service_variables(services, all_of_them=pod["spec"].get("enableServiceLinks", True))
    for source in container.get("envFrom", ()):
        found |= _from_source(source, values)
    for entry in container.get("env", ()):
        if "valueFrom" in entry:
            value = _value_from(entry["valueFrom"], pod, container, values)
            if value is not None:
                found[entry["name"]] = value
        else:
            found[entry["name"]] = expand(entry.get("value", ""), found)
    return found


def service_variables(services: Iterable[Json], *, all_of_them: bool) -> dict[str, str]:
    """Return what a pod gets of its namespace's Services, and always of `kubernetes`."""
    found: dict[str, str] = {}
    for service in services:
        address, name = service["spec"].get("clusterIP", "None"), service["metadata"]["name"]
        is_master = name == "kubernetes" and service["metadata"]["namespace"] == "default"
        if address in ("", "None") or not (is_master or all_of_them):
            continue
        prefix = name.upper().replace("-", "_")
        ports = service["spec"]["ports"]
        found[f"{prefix}_SERVICE_HOST"] = address
        found[f"{prefix}_SERVICE_PORT"] = str(ports[0]["port"])
        found[f"{prefix}_PORT"] = f"tcp://{address}:{ports[0]['port']}"
        for port in ports:
            found[f"{prefix}_PORT_{port['port']}_TCP"] = f"tcp://{address}:{port['port']}"
    return found


def field_of(pod: Json, path: str) -> str:
    """The value of a `fieldRef`; an absent label is empty. MissingReferenceError for a field that is not known yet."""
    if match := _BY_KEY.fullmatch(path):
        return str(pod["metadata"].get(match[1].removeprefix("metadata."), {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        entries = pod["metadata"].get(path.removeprefix("metadata."), {})
        return "\n".join(f'{key}="{value}"' for key, value in sorted(entries.items()))
    path = {"status.podIPs": "status.podIP"}.get(path, path)
    value: Any = pod
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if value is None:
        raise MissingReferenceError(f"field {path} has no value")
    return str(value)


def quantity(text: str) -> float:
    """A Kubernetes quantity (`250m`, `2Gi`) as a number."""
    match = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", text)
    if match is None or (match[2] and match[2] not in _SUFFIXES):
        raise ValueError(f"not a quantity: {text}")
    return float(match[1]) * _SUFFIXES.get(match[2], 1.0)


def _from_source(source: Json, values: Values) -> dict[str, str]:
    kind, reference = _reference(source, ("configMapRef", "secretRef"))
    found = values(kind, reference["name"])
    if found is None:
        if reference.get("optional"):
            return {}
        raise MissingReferenceError(f"{kind} {reference['name']} does not exist")
    return {source.get("prefix", "") + key: value for key, value in found.items()}


def _value_from(source: Json, pod: Json, container: Json, values: Values) -> str | None:
    if "fieldRef" in source:
        return field_of(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return _resource(source["resourceFieldRef"], container)
    kind, reference = _reference(source, ("configMapKeyRef", "secretKeyRef"))
    found = values(kind, reference["name"])
    if found is not None and reference["key"] in found:
        return found[reference["key"]]
    if reference.get("optional"):
        return None
    raise MissingReferenceError(f"{kind} {reference['name']} has no key {reference['key']}")


def _reference(source: Json, names: tuple[str, str]) -> tuple[str, Json]:
    config_map, secret = names
    if config_map in source:
        return "ConfigMap", source[config_map]
    return "Secret", source[secret]


def _resource(reference: Json, container: Json) -> str:
    kind, name = reference["resource"].split(".", 1)
    resources = container.get("resources", {})
    amount = resources.get(kind, {}).get(name) or resources.get("limits", {}).get(name, "0")
    divisor = reference.get("divisor", "1")
    number = quantity(str(amount)) / (quantity(str(divisor)) or 1.0)
    return str(-int(-number // 1))  # Kubernetes rounds up
