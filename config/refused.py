"""Settings and broker configs of Kafka's that have no meaning here, each with the reason and what to use instead.

Place: one table for config.load (a server.properties of Kafka is answered in words and not with "unknown") and for
requests that change broker configs (agent/admin/configs/rules.py).
Invariant: a name is declared in config/settings.py, or a cluster-wide default of a topic config, or refused; none is
accepted and ignored. An exact name rules over a prefix, a longer prefix over a shorter one.
Source: Kafka 4's broker configs; KIP-631, configurations (new, renamed and deprecated).
"""

from __future__ import annotations

from headrace.config.config_definition import Effect
from headrace.config.topic_configs import BROKER_DEFAULTS, TOPIC_CONFIGS

_NO_QUORUM = "Postgres takes the place of the Raft quorum: set metastore.url, and controller.lease.ms for takeovers"
_NO_DISK = "nothing is kept on local disks: data goes to bucket, metadata to metastore.url"
_NO_CONTROLLER_SESSION = (
    "agents reach the active controller through the metastore; its credentials stand in metastore.url"
)
_NO_INTER_BROKER = "agents do not talk to each other over Kafka listeners: they meet in the metastore and the bucket"
_NO_AUTHORIZER = "ACLs are recorded and served, but nobody is held to them yet"
_NO_TLS = "listeners speak PLAINTEXT: put TLS in front of them"
_NO_SASL = "listeners speak PLAINTEXT and do not authenticate"
_NO_THREADS = "an agent is one event loop, not pools of threads: run more agents instead"
_NO_REPLICAS = "the object store replicates, agents copy nothing to each other"
_NO_LOG_SEGMENTS = (
    "a partition has no segments of its own: its batches lie in files shared with other topics; see flush.bytes"
)
_NO_OFFSETS_TOPIC = "there is no topic __consumer_offsets: groups and their offsets are kept in metastore.url"
_NO_TRANSACTIONS = "transactions do not exist yet"
_NO_SHARE_GROUPS = "share groups do not exist"
_NO_STREAMS_GROUPS = "streams groups do not exist: Kafka Streams uses classic groups"
_NO_PLUGINS = "no Java class can be loaded here"
_NO_TIERING = "all data is in object storage from the start: no other tier"
_NO_KEY_CLEANER = "there is no log compaction by key yet, so nothing that it could buffer"
_NO_QUOTAS = "quotas are recorded and served, but nobody is held to them yet"
_OWN_METRICS = "metrics are served for Prometheus, at /metrics of http.port"
_NO_PURGATORY = "requests that wait are not kept in a purgatory: nothing is to be purged"

_REFUSED = {
    "allow.everyone.if.no.acl.found": _NO_AUTHORIZER,
    "alter.config.policy.class.name": _NO_PLUGINS,
    "alter.log.dirs.replication.": _NO_REPLICAS,
    "authorizer.": _NO_AUTHORIZER,
    "auto.include.jmx.reporter": _OWN_METRICS,
    "auto.leader.rebalance.enable": "which agent leads follows from who lives, at once: there is nothing to rebalance",
    "background.threads": _NO_THREADS,
    "broker.id": "renamed: set node.id",
    "broker.id.generation.enable": "leave node.id unset: an id is leased from the metastore",
    "client.quota.callback.class": _NO_PLUGINS,
    "config.providers": "values are taken as they stand: pass secrets in HEADRACE_* variables",
    "connection.failed.authentication.delay.ms": _NO_SASL,
    "connections.max.reauth.ms": _NO_SASL,
    "control.plane.listener.name": "the controller sends nothing to agents, they ask: there is no such listener",
    "controlled.shutdown.": "an agent takes its leave by itself: see shutdown.grace.ms",
    "controller.quorum.": _NO_QUORUM,
    "controller.quota.": _NO_QUOTAS,
    "controller.socket.timeout.ms": _NO_CONTROLLER_SESSION,
    "create.topic.policy.class.name": _NO_PLUGINS,
    "delegation.token.expiry.check.interval.ms": "the active controller looks three times in each controller.lease.ms",
    "delegation.token.master.key": "renamed: set delegation.token.secret.key",
    "delete.records.purgatory.": _NO_PURGATORY,
    "delete.topic.enable": "topics can always be deleted",
    "early.start.listeners": "listeners answer once the agent has joined; earlier requests wait",
    "eligible.leader.replicas.enable": _NO_REPLICAS,
    "fetch.purgatory.": _NO_PURGATORY,
    "follower.": _NO_REPLICAS,
    "group.coordinator.new.enable": "both group protocols are always served",
    "group.coordinator.rebalance.protocols": "both group protocols are always served",
    "group.coordinator.": "groups are kept in metastore.url: there is no log of theirs to write, load or buffer",
    "group.share.": _NO_SHARE_GROUPS,
    "group.streams.": _NO_STREAMS_GROUPS,
    "inter.broker.": _NO_INTER_BROKER,
    "inter.broker.protocol.version": "features have levels of their own, which UpdateFeatures changes",
    "kafka.metrics.": _OWN_METRICS,
    "leader.imbalance.": "which agent leads follows from who lives, at once: there is no imbalance",
    "leader.replication.": _NO_REPLICAS,
    "listener.name.": "there is one listener for clients: its settings have no listener's name in front",
    "listener.security.protocol.map": "listeners speak PLAINTEXT, whatever their names: put TLS in front of them",
    "log.cleaner.dedupe.buffer.size": _NO_KEY_CLEANER,
    "log.cleaner.enable": "background work is the role compactor: see process.roles",
    "log.cleaner.io.buffer.": _NO_KEY_CLEANER,
    "log.dir": _NO_DISK,
    "log.dir.failure.timeout.ms": _NO_DISK,
    "log.dirs": _NO_DISK,
    "log.flush.": "nothing is acknowledged before it is in object storage: there is nothing to flush",
    "log.initial.task.delay.ms": "the active controller keeps a schedule: see log.retention.check.interval.ms",
    "log.local.": _NO_TIERING,
    "log.message.downconversion.enable": "old message formats are neither stored nor served",
    "log.message.format.version": "old message formats are neither stored nor served",
    "log.message.timestamp.difference.max.ms": "renamed: set log.message.timestamp.before.max.ms and after.max.ms",
    "log.roll.": _NO_LOG_SEGMENTS,
    "log.segment.": _NO_LOG_SEGMENTS,
    "max.connection.creation.rate": "connections are bounded in number: see max.connections",
    "max.connections.per.ip": "connections are bounded for all addresses together: see max.connections",
    "max.connections.per.ip.overrides": "connections are bounded for all addresses together: see max.connections",
    "max.incremental.fetch.session.cache.slots": "an agent keeps as many fetch sessions as Kafka does by default",
    "max.request.partition.size.limit": "DescribeTopicPartitions has the limit that Kafka has by default",
    "metadata.log.dir": _NO_DISK,
    "metadata.log.segment.": "the metadata log is a table of Postgres: it has no segments",
    "metadata.max.idle.interval.ms": "the metadata log is a table of Postgres: it needs no records to stay alive",
    "metadata.max.retention.": "the metadata log is truncated behind each snapshot",
    "metric.reporters": _OWN_METRICS,
    "metrics.": _OWN_METRICS,
    "num.io.threads": _NO_THREADS,
    "num.network.threads": _NO_THREADS,
    "num.recovery.threads.per.data.dir": _NO_DISK,
    "num.replica.": _NO_REPLICAS,
    "offsets.commit.": _NO_OFFSETS_TOPIC,
    "offsets.load.buffer.size": _NO_OFFSETS_TOPIC,
    "offsets.retention.check.interval.ms": "each agent looks every few seconds, a little at a time",
    "offsets.topic.": _NO_OFFSETS_TOPIC,
    "password.encoder.": "secrets are not kept in configs: they stand in the agents' files or environment",
    "principal.builder.class": _NO_PLUGINS,
    "producer.id.expiration.check.interval.ms": "each agent looks every few seconds, a little at a time",
    "producer.purgatory.": _NO_PURGATORY,
    "queued.max.": "requests are bounded by their bytes, and per connection: see buffer.memory.bytes and"
    " connection.max.inflight.requests",
    "quorum.": _NO_QUORUM,
    "quota.": _NO_QUOTAS,
    "remote.": _NO_TIERING,
    "replica.": _NO_REPLICAS,
    "replica.selector.class": "a client is sent to its own zone: see broker.rack",
    "replication.quota.": _NO_REPLICAS,
    "request.timeout.ms": "agents send no requests to each other; see s3.request.timeout.ms and"
    " metastore.statement.timeout.ms",
    "reserved.broker.max.id": "leave node.id unset: an id is leased from the metastore",
    "sasl.": _NO_SASL,
    "sasl.mechanism.controller.protocol": _NO_CONTROLLER_SESSION,
    "sasl.mechanism.inter.broker.protocol": _NO_INTER_BROKER,
    "security.inter.broker.protocol": _NO_INTER_BROKER,
    "security.providers": _NO_PLUGINS,
    "server.max.startup.time.ms": "see initial.broker.registration.timeout.ms",
    "share.": _NO_SHARE_GROUPS,
    "socket.listen.backlog.size": "the backlog is a fixed one",
    "socket.receive.buffer.bytes": "sockets keep the system's own buffers",
    "socket.send.buffer.bytes": "sockets keep the system's own buffers",
    "socket.connection.setup.": _NO_INTER_BROKER,
    "ssl.": _NO_TLS,
    "super.users": _NO_AUTHORIZER,
    "telemetry.": "clients are not asked for telemetry",
    "transaction.": _NO_TRANSACTIONS,
    "transactional.": _NO_TRANSACTIONS,
    "unclean.leader.election.interval.ms": "no leader can lose data, so there is nothing to elect uncleanly",
    "unstable.": "there are no versions that are served on request only",
    "zookeeper.": "there is no ZooKeeper: set metastore.url",
}
"""Exact names, and prefixes with a dot at their end."""


def why_refused(name: str) -> str | None:
    """The reason, for a setting that Kafka has and Headrace refuses; None for any other name."""
    prefixes = [name[: end + 1] for end, letter in enumerate(name) if letter == "."]
    return next((_REFUSED[key] for key in (name, *reversed(prefixes)) if key in _REFUSED), None)


def why_not_in_files(name: str) -> str | None:
    """As `why_refused`, also for what is a cluster-wide default here and no setting of one agent."""
    if name not in BROKER_DEFAULTS:
        return why_refused(name)
    topic_config = TOPIC_CONFIGS[BROKER_DEFAULTS[name]]
    if topic_config.effect is Effect.NONE:
        return topic_config.meaning
    return f"it holds for the whole cluster: headrace configs set {name}=... --brokers"
