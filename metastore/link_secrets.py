"""Secrets of links, as the metadata log has them: sealed, under the link's name and the config's.

Place: the request that sets configs of a link seals (agent/topics/links.py), the worker that copies opens
(compactor/links).
Invariant: a password or a private key is never in the log in clear. A reference (`${env:HEADRACE_LINK_NAME}`) is no
secret: it is stored as it is, and resolved where it is used. A sealed value opens only for the link and the config
that it was sealed for, so that it cannot be moved to a link with another address.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from headrace.config.link_configs import SEALED, SECRETS, is_reference
from headrace.metastore.sealing import Sealing
from headrace.storage.errors import InvalidError

_CONTEXT = "link"


def why_not_sealed(sealing: Sealing, configs: Mapping[str, str]) -> str | None:
    """Return None if all secrets of the configs, given in clear, can be stored."""
    for name in sorted(SECRETS & configs.keys()):
        if configs[name].startswith(SEALED):
            return f"{name}: begins with {SEALED}, as only a stored value does"
        if configs[name] and not is_reference(configs[name]) and not sealing:
            return (
                f"{name}: cannot be stored, because the agents have no metadata.secret.keys to seal it with. Set those"
                " (docs/operate/SECURITY.md), or name a variable of the workers: ${env:HEADRACE_LINK_...}"
            )
    return None


def sealed(sealing: Sealing, link: str, configs: Mapping[str, str]) -> dict[str, str]:
    """The configs as they are stored. InvalidError if a secret needs a key and there is none."""
    return {name: _sealed(sealing, link, name, value) for name, value in configs.items()}


def opened(sealing: Sealing, link: str, stored: Mapping[str, str]) -> dict[str, str]:
    """The configs in clear; references are unchanged. InvalidError names a config that cannot be opened."""
    return {name: _opened(sealing, link, name, value) for name, value in stored.items()}


def _sealed(sealing: Sealing, link: str, name: str, value: str) -> str:
    if name not in SECRETS or not value or is_reference(value):
        return value
    return SEALED + base64.b64encode(sealing.seal(value.encode(), _CONTEXT, link, name)).decode()


def _opened(sealing: Sealing, link: str, name: str, value: str) -> str:
    if name not in SECRETS or not value.startswith(SEALED):
        return value
    try:
        data = base64.b64decode(value.removeprefix(SEALED), validate=True)
        return sealing.open(data, _CONTEXT, link, name).decode()
    except (binascii.Error, ValueError, InvalidError) as error:
        raise InvalidError(f"link {link}: {name} cannot be opened: {error}") from error
