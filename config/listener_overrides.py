"""Settings for one listener: `listener.name.NAME.SETTING`.

Place: between config/load.py, which reads them, and the code that opens a listener.
Invariant: only the settings of config/security_settings.py can be set for one listener; each value was checked as the
setting itself. A listener's name has any case.
Source: KIP-103.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import msgspec

from headrace.config.security_settings import SecuritySettings
from headrace.config.settings import Settings

PREFIX = "listener.name."


@functools.cache
def overridable() -> dict[str, str]:
    """Setting -> field of SecuritySettings."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(SecuritySettings)}


def split_key(key: str) -> tuple[str, str] | None:
    """(listener, setting) of `listener.name.NAME.SETTING`; None for another key, or for a setting that cannot be set
    for one listener."""
    if not key.startswith(PREFIX):
        return None
    name, _, setting = key.removeprefix(PREFIX).partition(".")
    return (name.upper(), setting) if name and setting in overridable() else None


def key_of_variable(variable: str) -> str | None:
    """`listener.name.external.ssl.client.auth` for LISTENER_NAME_EXTERNAL_SSL_CLIENT_AUTH; None for another variable.

    A name may have underscores: the longest setting that fits is the setting.
    """
    prefix = PREFIX.replace(".", "_").upper()
    if not variable.startswith(prefix):
        return None
    rest = variable.removeprefix(prefix)
    endings = {"_" + setting.replace(".", "_").upper(): setting for setting in overridable()}
    for ending in sorted(endings, key=len, reverse=True):
        if rest.endswith(ending) and rest != ending:
            return f"{PREFIX}{rest.removesuffix(ending).lower()}.{endings[ending]}"
    return None


def grouped(given: Iterable[tuple[str, object]]) -> dict[str, dict[str, object]]:
    """Group keys and values: listener -> setting -> value. Later ones count."""
    found: dict[str, dict[str, object]] = {}
    for key, value in given:
        split = split_key(key)
        assert split is not None, key
        found.setdefault(split[0], {})[split[1]] = value
    return found


def for_listener(settings: Settings, name: str) -> SecuritySettings:
    """The security settings of the listener with this name."""
    values: Mapping[str, object] = settings.listener_overrides.get(name.upper(), {})
    own = {overridable()[setting]: value for setting, value in values.items()}
    plain = {field: getattr(settings, field) for field in overridable().values()}
    return SecuritySettings(**(plain | own))
