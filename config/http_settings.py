"""The settings of the HTTP listener: health, metrics, status.

Place: between config/authorization_settings.py and config/process_settings.py, scope `process`.
Invariant: with a token file or a trust store, a client has to show a token or a certificate for every path except
/healthz and /readyz. Versions and ciphers of TLS are those of ssl.enabled.protocols and ssl.cipher.suites.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from headrace.config.authorization_settings import AuthorizationSettings
from headrace.config.bounds import Port


class HttpSettings(AuthorizationSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adds to scope `process`."""

    http_host: Annotated[str, Meta(description="Address of the HTTP listener (health, metrics, status).")] = field(
        default="127.0.0.1", name="http.host"
    )
    http_port: Annotated[
        Port | None,
        Meta(
            description="Port of the HTTP listener; 0 picks a free one. Unset: 9644, or 9645 in a process that is only"
            " a compactor, so that both run on one host."
        ),
    ] = field(default=None, name="http.port")
    http_ssl_keystore_location: Annotated[
        str,
        Meta(
            description="PEM file with the private key and the certificate chain of the HTTP listener, which then"
            " accepts HTTPS only. Read again when it changes. Unset: HTTP."
        ),
    ] = field(default="", name="http.ssl.keystore.location")
    http_ssl_key_password: Annotated[
        str | None, Meta(description="Password of the HTTP listener's private key, if it has one.")
    ] = field(default=None, name="http.ssl.key.password")
    http_ssl_truststore_location: Annotated[
        str,
        Meta(
            description="PEM file with the certificates that sign those of HTTP clients: a client with such a"
            " certificate may read every path. Needs http.ssl.keystore.location. Unset: no client certificates."
        ),
    ] = field(default="", name="http.ssl.truststore.location")
    http_bearer_token_location: Annotated[
        str,
        Meta(
            description="File with the bearer tokens of HTTP clients, one per line; a client with one of them may read"
            " every path. Read again when it changes. Unset: no tokens. If neither this nor"
            " http.ssl.truststore.location is set, every client may read every path."
        ),
    ] = field(default="", name="http.bearer.token.location")
