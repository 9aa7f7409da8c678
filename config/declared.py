"""The settings of config/settings.py as data: names, default, accepted values and meaning.

Place: between the declarations and their users: load.py (validation), docs.py (the page), the command line
(flags), broker configs (DescribeConfigs), cluster_values.py (what is the same for all processes).
Invariant: the accepted values shown here are the ones that msgspec enforces.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import msgspec

from headrace.config.bounds import LONG_MAX
from headrace.config.settings import Settings, SettingScope

ENV_PREFIX = "HEADRACE_"
NO_SETTINGS = ("listener_overrides", "set_that_go")
"""The fields that are no settings: config/listeners.py, config/cluster_values.py."""
OF_BUCKETS = ("bucket", "s3.", "azure.", "gcs.", "store.")
"""How the names of settings begin by which a bucket is reached: for all that pass settings on, or ask for them."""

_SCOPES = list(SettingScope)


class Declared(NamedTuple):
    """One setting. `field` is its attribute in Settings, `annotation` is what msgspec converts to; `goes` is why the
    default is right for every cluster, empty for a setting that stays.
    """

    name: str
    field: str
    scope: SettingScope
    environment: str
    default: Any
    annotation: Any
    accepted: str
    meaning: str
    goes: str


@functools.cache
def declared() -> dict[str, Declared]:
    """Every setting by its dotted name: by scope, then in the order of declaration."""
    found = (_declared(field) for field in msgspec.structs.fields(Settings) if field.name not in NO_SETTINGS)
    return {setting.name: setting for setting in sorted(found, key=lambda setting: _SCOPES.index(setting.scope))}


def _declared(field: msgspec.structs.FieldInfo) -> Declared:
    info = msgspec.inspect.type_info(field.type)
    assert isinstance(info, msgspec.inspect.Metadata), "every setting is Annotated with a Meta"
    extra, marks = info.extra_json_schema or {}, info.extra or {}
    return Declared(
        field.encode_name,
        field.name,
        marks.get("scope", SettingScope.PROCESS),
        ENV_PREFIX + field.encode_name.replace(".", "_").upper(),
        field.default,
        field.type,
        str(extra.get("accepted") or _accepted(info.type)),
        str(extra["description"]),
        marks.get("goes", ""),
    )


def _accepted(info: Any) -> str:
    if isinstance(info, msgspec.inspect.UnionType):
        return " or ".join(_accepted(t) for t in info.types if not isinstance(t, msgspec.inspect.NoneType))
    if isinstance(info, msgspec.inspect.BoolType):
        return "true, false"
    if isinstance(info, msgspec.inspect.IntType):
        if info.ge is not None and info.le not in (None, LONG_MAX):
            return f"{info.ge} to {info.le}"
        return f"integer ≥ {info.ge}" if info.ge is not None else "integer"
    pattern = getattr(info, "pattern", None)
    return ", ".join(pattern.strip("^$()").split("|")) if pattern else "text"
