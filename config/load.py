"""Fill Settings from a file, the environment and flags; later ones win.

Place: the first thing that every command does.
Invariant: a key that Settings does not declare is refused by name, wherever it came from; so is a
value of the wrong type or out of bounds. If the process dies here it never started.

File: Java properties, as Kafka's server.properties (`linger.ms=100`, `#` comments).
Environment: `HEADRACE_LINGER_MS`. `HEADRACE_TEST_*` belongs to the test suite and is passed over.
Flags: `--linger-ms`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from config.refused import why_refused
from config.settings import Settings

ENV_PREFIX = "HEADRACE_"
TEST_PREFIX = "HEADRACE_TEST_"


class ConfigError(ValueError):
    """A setting is unknown or its value is not acceptable; the message names it and says where it stood."""


def setting_names() -> list[str]:
    """Every setting's dotted name, in the order of their declaration."""
    return [f.encode_name for f in msgspec.structs.fields(Settings)]


def env_name(setting: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + setting.replace(".", "_").upper()


def read_properties(path: Path) -> dict[str, str]:
    """Keys and values of a properties file; ConfigError names the line that is neither."""
    values: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(f"{path}:{number}: not a key=value line: {text}")
        values[key.strip()] = value.strip()
    return values


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings that the environment holds; an unknown HEADRACE_ variable is refused."""
    names = {env_name(name): name for name in setting_names()}
    values: dict[str, str] = {}
    for variable, value in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable.startswith(TEST_PREFIX):
            continue
        if variable not in names:
            raise ConfigError(f"unknown environment variable {variable}{_suggest(variable, names)}")
        values[names[variable]] = value
    return values


def load(
    *,
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Settings:
    """Settings from all three sources. Raises ConfigError."""
    values: dict[str, object] = {}
    if path is not None:
        values.update(_known(read_properties(path), str(path)))
    values.update(from_environment(environ or {}))
    values.update(_known(flags or {}, "flags"))
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"unacceptable setting: {error}") from error


def _known(values: Mapping[str, object], where: str) -> dict[str, object]:
    names = setting_names()
    for key in values:
        if key not in names:
            raise ConfigError(_refusal(where, key, names))
    return dict(values)


def _refusal(where: str, key: str, names: list[str]) -> str:
    reason = why_refused(key)
    if reason is not None:
        return f"{where}: {key} is not used here: {reason}"
    return f"{where}: unknown setting {key}{_suggest(key, names)}"


def _suggest(key: str, known: Mapping[str, str] | list[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
