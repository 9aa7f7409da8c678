"""Read the settings from a file, the environment or flags; later sources override earlier ones.

Place: the first step of every command. References (`${env:NAME}`, `${file:/path}`) are replaced before a value is
checked.
Invariant of references: only a whole value is a reference; its text is used as it is, without the last line break,
and never shown in an error.
Source: KIP-297 (config providers), with the file as the value rather than as a list of keys.
Invariant: a key that Settings does not declare is refused by name, from every source; so is a value of the wrong
type or out of bounds. One error message lists all problems.

File: Java properties, as Kafka's server.properties (`linger.ms=100`, `#` comments).
Environment: `HEADRACE_LINGER_MS`. `HEADRACE_TEST_*` is for the test suite and is ignored.
Flags: `--linger-ms`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.config import listeners
from headrace.config.addresses import (
    AZURE_CREDENTIALS,
    GOOGLE_CREDENTIALS,
    HIDDEN,
    endpoint_problem,
    shown_address,
)
from headrace.config.declared import ENV_PREFIX, Declared, declared
from headrace.config.errors import ConfigError
from headrace.config.link_configs import REFERENCE_PREFIX
from headrace.config.metastore_url import metastore_url_problem
from headrace.config.refused import why_not_in_files
from headrace.config.security_settings import SECRETS
from headrace.config.settings import Settings

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def resolved(value: object, environ: Mapping[str, str]) -> object:
    """The text that the value refers to; other values as they are. ConfigError if the variable or file is missing."""
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    kind, name = match.groups()
    if kind == "env":
        if name not in environ:
            raise ConfigError(f"no environment variable {name}")
        return environ[name]
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text: {name}") from error


_ADDRESSES: dict[str, Callable[[str], str | None]] = {
    "metastore.url": metastore_url_problem,
    "s3.endpoint": endpoint_problem,
    "azure.endpoint": partial(endpoint_problem, credentials=AZURE_CREDENTIALS),
    "gcs.endpoint": partial(endpoint_problem, credentials=GOOGLE_CREDENTIALS),
}
"""Settings that are addresses: what is wrong with a value, said without a password in it."""
_NAME = re.compile(r"[\w.-]{1,200}")
"""What a name may be: other text before the first = may be half a secret."""
TEST_PREFIX = "HEADRACE_TEST_"
BOOTSTRAP_SERVER = "HEADRACE_BOOTSTRAP_SERVER"
"""The tools' variable: no setting."""


class _Given(NamedTuple):
    """One setting as it was found; `key` is None for a line that is no setting, and `value` then says why."""

    where: str
    key: str | None
    value: object
    is_reference: bool = False
    """The value came from a file or variable that it names: it may be a secret."""


def read_properties(path: Path) -> dict[str, str]:
    """Keys and values of a properties file. ConfigError names each malformed line, or says that it cannot be read."""
    lines = list(_properties(path))
    _refuse(f"{given.where}: {given.value}" for given in lines if given.key is None)
    return {given.key: str(given.value) for given in lines if given.key is not None}


def load(
    *,
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Settings:
    """Settings from all three sources. Raises ConfigError."""
    found = [
        *(() if path is None else _properties(path)),
        *_environment(environ or {}),
        *(_Given("flags", key, value) for key, value in (flags or {}).items()),
    ]
    found = [_resolved(given, environ or {}) for given in found]
    found = [given._replace(value=None) if _is_left_unset(given) else given for given in found]
    _refuse(complaint for given in found if (complaint := _complaint(given)))
    own = {str(given.key): given.value for given in found if given.key in declared()}
    overrides = listeners.grouped((str(given.key), _converted(given)) for given in found if given.key not in own)
    going = frozenset(name for name in own if declared()[name].goes)
    return msgspec.convert(own | {"listener.name": overrides, "set.that.go": going}, Settings, strict=False)


def _properties(path: Path) -> Iterator[_Given]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text: {path}: {error.reason} at byte {error.start}") from error
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, separator, value = text.partition("=")
        if separator and _NAME.fullmatch(key.strip()):
            yield _Given(f"{path}:{number}", key.strip(), value.strip())
        else:
            yield _Given(f"{path}:{number}", None, f"not a key=value line{_begins_with(text)}")


def _begins_with(text: str) -> str:
    """The setting that a malformed line seems to set; nothing else of it, as the rest may be a secret."""
    name = re.split(r"[\s:]", text, maxsplit=1)[0]
    return f": {name} ..." if name in declared() else ""


def _environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    names = {setting.environment: name for name, setting in declared().items()}
    for variable, value in environ.items():
        if variable in names:
            yield _Given(variable, names[variable], value)
        elif (key := listeners.key_of_variable(variable.removeprefix(ENV_PREFIX))) is not None:
            yield _Given(variable, key, value)
        elif variable.startswith(ENV_PREFIX) and not variable.startswith(
            (TEST_PREFIX, BOOTSTRAP_SERVER, REFERENCE_PREFIX)
        ):
            reason = why_not_in_files(variable.removeprefix(ENV_PREFIX).replace("_", ".").lower())
            problem = (
                f"not used here: {reason}" if reason else f"unknown environment variable{_suggest(variable, names)}"
            )
            yield _Given(variable, None, problem)


def _resolved(given: _Given, environ: Mapping[str, str]) -> _Given:
    """Return the line with the text that a reference names; as a line that is no setting, if that is not there."""
    try:
        value = resolved(given.value, environ)
    except ConfigError as error:
        return given._replace(key=None, value=f"{given.key}: {error}")
    return given._replace(value=value, is_reference=value is not given.value)


def _is_left_unset(given: _Given) -> bool:
    """An empty value of a setting that may be unset, for example in a pod on a node without a zone."""
    return given.value == "" and given.key in declared() and declared()[given.key].default is None


def _complaint(given: _Given) -> str | None:
    """Return None for a known setting with a valid value."""
    where, key, value, _ = given
    if key is None:
        return f"{where}: {value}"
    setting = _setting(key)
    if setting is None:
        if not _NAME.fullmatch(key):
            return f"{where}: not a key=value line{_begins_with(key)}"
        reason = why_not_in_files(key)
        problem = f"{key} is not used here: {reason}" if reason else f"unknown setting {key}{_suggest(key, declared())}"
        return f"{where}: {problem}"
    try:
        msgspec.convert(value, setting.annotation, strict=False)
    except msgspec.ValidationError:
        return f"{where}: {key}: invalid value {_shown(setting, given)} (accepted: {setting.accepted})"
    wrong = _ADDRESSES[setting.name](str(value)) if value is not None and setting.name in _ADDRESSES else None
    return None if wrong is None else f"{where}: {key}: {wrong}"


def _setting(key: str | None) -> Declared | None:
    """Return what a key sets, for all listeners or for one."""
    override = listeners.split_key(key or "")
    return declared().get(override[1] if override else key or "")


def _converted(given: _Given) -> object:
    """The value of a setting of one listener."""
    setting = _setting(given.key)
    assert setting is not None, given.key
    return msgspec.convert(given.value, setting.annotation, strict=False)


def _shown(setting: Declared, given: _Given) -> str:
    if setting.name in SECRETS or given.is_reference:
        return HIDDEN
    return repr(shown_address(given.value) if isinstance(given.value, str) else given.value)


def _refuse(complaints: Iterable[str]) -> None:
    """Raise ConfigError if there are any complaints."""
    problems = list(complaints)
    if problems:
        raise ConfigError(
            problems[0] if len(problems) == 1 else "\n  ".join((f"{len(problems)} invalid settings:", *problems))
        )


def _suggest(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
