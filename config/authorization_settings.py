"""The settings of authorization.

Place: between config/security_settings.py and config/http_settings.py, scope `process`.
Invariant: names and meanings are Kafka's. No request of a client can change one of them: a client that may change
configs would make itself a super user. They have to be the same on every agent.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from headrace.config.security_settings import SecuritySettings

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class AuthorizationSettings(SecuritySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adds to scope `process`."""

    authorizer_class_name: Annotated[
        str,
        Meta(
            pattern=f"^({STANDARD_AUTHORIZER.replace('.', '[.]')}|)$",
            description="Whether ACLs are enforced. Empty: they are stored and listed only. Otherwise Kafka's name of"
            " the authorizer that applies. The same on every agent.",
            extra_json_schema={"accepted": f"{STANDARD_AUTHORIZER}, or empty"},
        ),
    ] = field(default="", name="authorizer.class.name")
    super_users: Annotated[
        str,
        Meta(
            pattern="^([^:;]+:[^;]+(;[^:;]+:[^;]+)*;?|)$",
            description="Principals that may do everything, separated by semicolons: User:admin;User:backup. The same"
            " on every agent.",
            extra_json_schema={"accepted": "type:name, separated by semicolons"},
        ),
    ] = field(default="", name="super.users")
    allow_everyone_if_no_acl_found: Annotated[
        bool,
        Meta(description="Whether all clients may use a resource that no ACL includes. The same on every agent."),
    ] = field(default=False, name="allow.everyone.if.no.acl.found")
