"""Values that are read from elsewhere: `${env:NAME}` and `${file:/path}` instead of a secret.

Place: in config/load.py, before a value is checked.
Invariant: only a whole value is a reference; its text is used as it is, without the last line break, and never shown in
an error.
Source: KIP-297 (config providers), with the file as the value rather than as a list of keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from headrace.config.errors import ConfigError

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
