"""Settings of Kafka that have no meaning here, each with the reason and what to use instead.

Place: config.load, so that a server.properties of Kafka is answered in words and not with "unknown".
Invariant: a setting is declared in config/settings.py or refused; none is accepted and ignored.
Source: KIP-631, configurations (new, renamed and deprecated).
"""

from __future__ import annotations

_NO_QUORUM = "Postgres takes the place of the Raft quorum: set metastore.url, and controller.lease.ms for takeovers"
_NO_DISK = "nothing is kept on local disks: data goes to bucket, metadata to metastore.url"
_NO_CONTROLLER_SESSION = (
    "agents reach the active controller through the metastore; its credentials stand in metastore.url"
)
_NO_INTER_BROKER = "agents do not talk to each other over Kafka listeners: they meet in the metastore and the bucket"

_NO_AUTHORIZER = "ACLs are recorded and served, but nobody is held to them yet"

_EXACT = {
    "advertised.listeners": "set advertised.host and advertised.port",
    "allow.everyone.if.no.acl.found": _NO_AUTHORIZER,
    "authorizer.class.name": _NO_AUTHORIZER,
    "broker.id": "renamed: set node.id",
    "broker.id.generation.enable": "leave node.id unset: an id is leased from the metastore",
    "control.plane.listener.name": "the controller sends nothing to agents, they ask: there is no such listener",
    "delegation.token.master.key": "renamed: set delegation.token.secret.key",
    "inter.broker.listener.name": _NO_INTER_BROKER,
    "listener.security.protocol.map": "listeners speak PLAINTEXT: put TLS in front of them",
    "log.dir": _NO_DISK,
    "log.dirs": _NO_DISK,
    "metadata.log.dir": _NO_DISK,
    "reserved.broker.max.id": "leave node.id unset: an id is leased from the metastore",
    "sasl.mechanism.controller.protocol": _NO_CONTROLLER_SESSION,
    "sasl.mechanism.inter.broker.protocol": _NO_INTER_BROKER,
    "security.inter.broker.protocol": _NO_INTER_BROKER,
    "super.users": _NO_AUTHORIZER,
}
_PREFIXES = {
    "controller.quorum.": _NO_QUORUM,
    "quorum.": _NO_QUORUM,
    "zookeeper.": "there is no ZooKeeper: set metastore.url",
}


def why_refused(setting: str) -> str | None:
    """The reason, for a setting that Kafka has and Headrace refuses; None for any other name."""
    if setting in _EXACT:
        return _EXACT[setting]
    return next((reason for prefix, reason in _PREFIXES.items() if setting.startswith(prefix)), None)
