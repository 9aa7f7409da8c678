"""Write addresses of IPv4 or IPv6 in one way, without secrets where people read them.

Place: used by all code that prints an address with a port, and by errors of settings, stores and key sets. Pure.
Invariant: an IPv6 address is in brackets when a port follows it. An IPv4 client of a socket that takes both families
has its IPv4 address, so that limits, quotas and ACLs know it by one address.
A text of a library may repeat a part of an address that was written wrongly, such as the half of a password before a
`/` as a port: `without_secrets` knows the address, and hides each part of its password.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

_MAPPED = "::ffff:"
_NETWORK_BITS = 64


def address_text(host: str, port: int | str) -> str:
    """Return `host:port`, or `[host]:port` for an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unmapped(host: str) -> str:
    """Return the IPv4 address of `::ffff:10.0.0.1`; any other host as it is."""
    return host.removeprefix(_MAPPED) if host.startswith(_MAPPED) and "." in host else host


def is_every_address(host: str) -> bool:
    """Return whether a socket that is bound to the address takes connections to any address of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def counted_address(host: str) -> str:
    """Return what limits per address count by: an IPv4 address, or the /64 network of an IPv6 address.

    One host usually has a whole /64 and may connect from any address in it.
    """
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network((host.partition("%")[0], _NETWORK_BITS), strict=False))
    except ValueError:
        return host


_LOGIN_OF_VALUE = re.compile(r"(?<=://).*@", re.S)
_LOGIN_IN_TEXT = re.compile(r"(?<=://)[^\s/\"'<>]*@")
_PARAMETERS_IN_TEXT = re.compile(r"(?<=\w)\?[\w%.~-]+=[^\s\"'<>)\]]*|(?<=/)\?[^\s\"'<>)\]]+")
_SCHEME = re.compile(r"^[A-Za-z][\w+.-]*:?/*")
_SECRET_PARAMETER = re.compile(r"(?:^|[?&;\s])[^=?&;\s]*(?:password|secret|token|credential|key)[^=]*=([^&;\s]*)", re.I)
_PARTS = re.compile(r"[^\w.~-]+")
HIDDEN = "(not shown)"


def shown_address(value: str) -> str:
    """One value, of which all up to the last @ may be a password that was written wrongly."""
    without_login = _LOGIN_OF_VALUE.sub(f"{HIDDEN}@", value)
    place, has_parameters, _ = without_login.partition("?")
    return f"{place}?{HIDDEN}" if has_parameters and "://" in place else without_login


def endpoint_problem(value: str, credentials: str = "the AWS environment (AWS_ACCESS_KEY_ID, ...)") -> str | None:
    """Return what is wrong with a store's endpoint; None for one that can be used. `credentials`: where they are."""
    if "@" in value:
        return f"it has a user or password: credentials come from {credentials}"
    try:
        parts = urlsplit(value)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    return None if is_good else f"{shown_address(value)!r} is not http://host:port or https://host"


def without_logins(text: str) -> str:
    """A text of others, for example an error of a library, in which addresses may be."""
    return _LOGIN_IN_TEXT.sub(f"{HIDDEN}@", text)


def without_parameters(text: str) -> str:
    """A text of others, in which addresses may be that have a signature as a parameter."""
    return _PARAMETERS_IN_TEXT.sub(f"?{HIDDEN}", text)


def without_secrets(text: str, *values: str) -> str:
    """A text of others about values that may have a login, well written or not."""
    parts = {part for value in values for part in _secret_parts(value)}
    for value in values:
        if value and _secret_parts(value):
            text = text.replace(value, shown_address(value) if "://" in value else HIDDEN)
    for part in sorted(parts, key=len, reverse=True):
        text = re.sub(rf"(?<![\w]){re.escape(part)}(?![\w])", HIDDEN, text)
    return without_logins(text)


def _secret_parts(value: str) -> set[str]:
    """The password of an address, or its user if it has no password, as a whole and in the parts in which a library may
    take it; and its parameters that are secret."""
    login, has_login, _ = value.rpartition("@")
    login = _SCHEME.sub("", login, count=1)
    _, has_password, password = login.partition(":")
    secrets = [password if has_password else login] if has_login else []
    secrets += _SECRET_PARAMETER.findall(value)
    found = {whole for secret in secrets for whole in (secret, unquote(secret))}
    return {part for whole in found for part in (whole, *_PARTS.split(whole)) if part}


AZURE_CREDENTIALS = "an identity, AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN"
GOOGLE_CREDENTIALS = "an identity (GOOGLE_APPLICATION_CREDENTIALS, or the machine's)"
AZURE_SCHEMES = ("az", "abfss")
_OBJECT_STORES = ("s3", *AZURE_SCHEMES, "gs")
_BLOB_HOST = re.compile(
    r"^[a-z0-9]{3,24}\.(?:dfs|blob)\.(?P<cloud>core\.(?:windows\.net|usgovcloudapi\.net|chinacloudapi\.cn))$"
)
_ACCOUNT = re.compile(r"^[a-z0-9]{3,24}$")


def is_object_store(url: str) -> bool:
    """Return whether a bucket's address names object storage, where requests cost money and take milliseconds."""
    return url.partition("://")[0] in _OBJECT_STORES


class AzurePlace(NamedTuple):
    """`endpoint`: of another cloud than the public one; None for that. `prefix` without slashes at its ends."""

    account: str
    container: str
    prefix: str
    endpoint: str | None = None

    @property
    def address(self) -> str:
        """The one spelling of the place."""
        return f"az://{self.account}/{self.container}/{self.prefix}".rstrip("/")


def azure_place(url: str) -> AzurePlace | None:
    """Return the place of az://account/container/prefix or abfss://container@account.dfs.core.windows.net/prefix; None
    if it is none.
    """
    parts = urlsplit(url)
    path = unquote(parts.path).strip("/")
    if parts.scheme == "abfss":
        container, _, host = parts.netloc.rpartition("@")
        found = _BLOB_HOST.match(host)
        if found is None or not container or ":" in container or "@" in container:
            return None
        account, cloud = host.partition(".")[0], found["cloud"]
        return AzurePlace(account, container, path, None if "windows" in cloud else f"https://{account}.blob.{cloud}")
    container, _, prefix = path.partition("/")
    if parts.scheme != "az" or not _ACCOUNT.match(parts.netloc) or not container:
        return None
    return AzurePlace(parts.netloc, container, prefix.strip("/"))
