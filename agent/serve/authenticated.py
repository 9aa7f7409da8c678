"""Authentication for the listeners of a process, from its settings and its image of the cluster.

Place: agent/serve/paths.py for the broker's listeners, agent/serve/controller_role.py for the one for
controllers.
Invariant: a listener on which clients must authenticate is served through the gate, and through nothing else.
"""

from __future__ import annotations

import hmac
import random
from collections.abc import Mapping

from headrace.agent.access.audit import AuditLog
from headrace.agent.access.listener_security import ListenerSecurity
from headrace.agent.access.sasl.authentication import Authentication
from headrace.agent.access.sasl.passwords import Credentials
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.cluster.view import ClusterView
from headrace.metastore.log.scram_keys import SealedKeys
from headrace.metastore.process_context import ProcessContext
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import RequestHandler


def authenticated(
    context: ProcessContext,
    dispatcher: Dispatcher,
    securities: Mapping[str, ListenerSecurity],
    view: ClusterView,
    zone_secret: bytes,
    sealed_keys: SealedKeys,
    audit: AuditLog,
) -> RequestHandler:
    """The dispatcher's handler, with SaslHandshake and SaslAuthenticate; behind a gate if a listener has SASL."""
    settings, clock, nonces = context.settings, context.clock, random.SystemRandom()
    credentials = Credentials(
        lambda: view.image,
        lambda: settings.delegation_token_secret_key,
        clock,
        hmac.digest(zone_secret, b"salts of unknown users", "sha256"),
        sealed_keys,
    )
    authentication = Authentication(securities, credentials, clock, nonces, context.registry, audit, view.catch_up)
    dispatcher.register(ApiKey.SASL_HANDSHAKE, authentication.handshake)
    dispatcher.register(ApiKey.SASL_AUTHENTICATE, authentication.authenticate)
    has_gate = any(security.must_authenticate for security in securities.values())
    return authentication.gate(dispatcher.handle) if has_gate else dispatcher.handle
