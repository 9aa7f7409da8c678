"""The settings of encryption and authentication.

Place: the base of config/settings.py, scope `process`; what a listener takes. `listener.name.NAME.` before one of
these names sets it for one listener (config/listeners.py).
Invariant: names and meanings are Kafka's. Files are PEM. No value here is a secret but those in SECRETS.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from headrace.config.bounds import NonNegativeInt, PositiveInt

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_MECHANISM_LIST = "|".join(MECHANISMS)
SECRETS = frozenset(
    {"ssl.key.password", "http.ssl.key.password", "delegation.token.secret.key", "metadata.secret.keys"}
)
"""Names of settings with a secret as value."""


class SecuritySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scope `process`; each can be set for one listener."""

    # -- encryption
    ssl_keystore_location: Annotated[
        str,
        Meta(
            description="PEM file with the private key and the certificate chain of listeners with SSL or SASL_SSL,"
            " read again when it changes."
        ),
    ] = field(default="", name="ssl.keystore.location")
    ssl_keystore_type: Annotated[str, Meta(pattern="^(PEM)$", description="Only PEM.")] = field(
        default="PEM", name="ssl.keystore.type"
    )
    ssl_key_password: Annotated[str | None, Meta(description="Password of the private key, if it has one.")] = field(
        default=None, name="ssl.key.password"
    )
    ssl_truststore_location: Annotated[
        str,
        Meta(
            description="PEM file with the authorities of clients' and other agents' certificates, read again when it"
            " changes. Unset: the system's, for other agents; none, for clients."
        ),
    ] = field(default="", name="ssl.truststore.location")
    ssl_truststore_type: Annotated[str, Meta(pattern="^(PEM)$", description="Only PEM.")] = field(
        default="PEM", name="ssl.truststore.type"
    )
    ssl_client_auth: Annotated[
        str,
        Meta(
            pattern="^(none|requested|required)$",
            description="Whether a client shows a certificate. Its subject becomes the principal.",
        ),
    ] = field(default="none", name="ssl.client.auth")
    ssl_enabled_protocols: Annotated[
        str,
        Meta(
            pattern="^(TLSv1.2|TLSv1.3)(,(TLSv1.2|TLSv1.3))*$",
            description="Versions of TLS.",
            extra_json_schema={"accepted": "TLSv1.2, TLSv1.3, separated by commas"},
        ),
    ] = field(default="TLSv1.2,TLSv1.3", name="ssl.enabled.protocols")
    ssl_cipher_suites: Annotated[
        str,
        Meta(description="Ciphers of TLS 1.2, as OpenSSL names them, separated by colons. Unset: OpenSSL's choice."),
    ] = field(default="", name="ssl.cipher.suites")
    ssl_endpoint_identification_algorithm: Annotated[
        str,
        Meta(
            pattern="^(https|)$",
            description="Whether agents check the name in the certificate of another agent; empty: they do not.",
            extra_json_schema={"accepted": "https, or empty"},
        ),
    ] = field(default="https", name="ssl.endpoint.identification.algorithm")
    ssl_principal_mapping_rules: Annotated[
        str,
        Meta(
            description="How the subject of a client's certificate becomes the principal's name:"
            " RULE:pattern/replacement/[LU], separated by commas; the first match counts. DEFAULT: the whole subject."
        ),
    ] = field(default="DEFAULT", name="ssl.principal.mapping.rules")

    # -- authentication
    sasl_enabled_mechanisms: Annotated[
        str,
        Meta(
            pattern=f"^({_MECHANISM_LIST})(,({_MECHANISM_LIST}))*$",
            description="Mechanisms of listeners with SASL_PLAINTEXT or SASL_SSL. PLAIN and SCRAM use the SCRAM"
            " credentials in the metadata log.",
            extra_json_schema={"accepted": f"{', '.join(MECHANISMS)}, separated by commas"},
        ),
    ] = field(default="SCRAM-SHA-256,SCRAM-SHA-512", name="sasl.enabled.mechanisms")
    connections_max_reauth_ms: Annotated[
        NonNegativeInt,
        Meta(description="A client must authenticate again within this time; 0: never. Else its connection is closed."),
    ] = field(default=0, name="connections.max.reauth.ms")
    connection_failed_authentication_delay_ms: Annotated[
        NonNegativeInt, Meta(description="The answer to a failed authentication waits for so long.")
    ] = field(default=100, name="connection.failed.authentication.delay.ms")
    sasl_oauthbearer_jwks_endpoint_url: Annotated[
        str,
        Meta(
            pattern="^(file://.*|https://.*|)$",
            description="URL of the JSON Web Key Set that signs the tokens of OAUTHBEARER: file:// (read again when"
            " it changes) or https:// (every refresh.ms, and for an unknown key).",
            extra_json_schema={"accepted": "file:///path, https://host/path"},
        ),
    ] = field(default="", name="sasl.oauthbearer.jwks.endpoint.url")
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Annotated[
        PositiveInt, Meta(description="How often the key set of an https:// URL is asked for.")
    ] = field(default=3_600_000, name="sasl.oauthbearer.jwks.endpoint.refresh.ms")
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: Annotated[
        PositiveInt, Meta(description="Pause after the first failure to get that key set; it doubles with each one.")
    ] = field(default=100, name="sasl.oauthbearer.jwks.endpoint.retry.backoff.ms")
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: Annotated[
        PositiveInt, Meta(description="The longest such pause.")
    ] = field(default=10_000, name="sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms")
    sasl_oauthbearer_expected_audience: Annotated[
        str, Meta(description="Values of the claim aud, separated by commas: a token has one of them. Unset: any.")
    ] = field(default="", name="sasl.oauthbearer.expected.audience")
    sasl_oauthbearer_expected_issuer: Annotated[str, Meta(description="Value of the claim iss. Unset: any.")] = field(
        default="", name="sasl.oauthbearer.expected.issuer"
    )
    sasl_oauthbearer_sub_claim_name: Annotated[
        str, Meta(description="The claim that becomes the principal's name.")
    ] = field(default="sub", name="sasl.oauthbearer.sub.claim.name")
    sasl_oauthbearer_clock_skew_seconds: Annotated[
        NonNegativeInt, Meta(description="How much the clock of the issuer may differ.")
    ] = field(default=30, name="sasl.oauthbearer.clock.skew.seconds")
