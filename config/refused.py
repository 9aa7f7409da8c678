"""Kafka settings and broker configs that Headrace does not support, each with the reason and the alternative.

Place: one table for config.load (so that a Kafka server.properties gets a helpful answer instead of "unknown") and
for requests that change broker configs (agent/topics/configs/rules.py).
Invariant: a name is declared in config/settings.py, or is a cluster-wide default of a topic config, or is refused; no
name is accepted and ignored. An exact name takes precedence over a prefix, a longer prefix over a shorter one.
Source: Kafka 4's broker configs; KIP-631, configurations (new, renamed and deprecated).
"""

from __future__ import annotations

from headrace.config.config_definition import ConfigEffect
from headrace.config.listeners import overridable
from headrace.config.topic_configs import BROKER_DEFAULTS, TOPIC_CONFIGS

_NO_QUORUM = "Postgres replaces the Raft quorum: set metastore.url, and controller.lease.ms for takeovers"
_NO_DISK = "no data is kept on local disks: data is stored in bucket, metadata in metastore.url"
_NO_CONTROLLER_SESSION = (
    "agents reach the active controller through the metastore; its credentials are part of metastore.url"
)
_NO_INTER_BROKER = (
    "agents authenticate to each other by a secret of the cluster, at the listener of inter.broker.listener.name"
)
_NO_STORE = "keys and certificates are PEM files: set ssl.keystore.location and ssl.truststore.location"
_NO_ENGINE = "TLS is OpenSSL's: it has no providers, factories and algorithms of Java"
_NO_JAAS = "there is no JAAS: set sasl.enabled.mechanisms, and add users with kafka-configs --entity-type users"
_NO_KERBEROS = "GSSAPI is not supported: use SCRAM, OAUTHBEARER or client certificates"
_NO_THREADS = "an agent uses one event loop, not thread pools: run more agents instead"
_NO_REPLICAS = "the object store replicates: agents copy no data"
_NO_LOG_SEGMENTS = (
    "a partition has no log segments: its batches are stored in files shared with other topics; see flush.bytes"
)
_ASSIGNED_AT_ONCE = "a group's assignment is made with each change of its members or topics"
_NO_OFFSETS_TOPIC = "there is no topic __consumer_offsets: groups and their offsets are stored in metastore.url"
_NO_STATE_TOPIC = "there is no topic __transaction_state: transactions are stored in metastore.url"
_ALWAYS_VERIFIED = "each transactional batch is checked when it is committed"
_NO_TWO_PHASES = "two-phase commit with an external coordinator (KIP-939) is not supported"
_ALWAYS_SERVED = "classic and consumer groups are always served, others by share.version and streams.version"
_NO_SHARE_GROUPS = "share groups have one assignor, and their state is in metastore.url"
_NO_PLUGINS = "Java classes cannot be loaded"
_NO_TIERING = "all data goes into object storage: there is no other tier to move it to"
_NO_QUOTAS = "quotas are kept by token buckets with a burst of one second, ten for controller_mutation_rate"
_OWN_METRICS = "metrics are served for Prometheus, at /metrics of http.port"
_NO_PURGATORY = "waiting requests are not kept in a purgatory: there is nothing to purge"

_REFUSED = {
    "add.partitions.to.txn.": "partitions join a transaction in one statement: there is nothing to try again",
    "advertised.host": "replaced by advertised.listeners",
    "advertised.port": "replaced by advertised.listeners",
    "alter.config.policy.class.name": _NO_PLUGINS,
    "alter.log.dirs.replication.": _NO_REPLICAS,
    "auto.include.jmx.reporter": _OWN_METRICS,
    "auto.leader.rebalance.enable": "leadership follows the set of active agents at once: no rebalance is needed",
    "background.threads": _NO_THREADS,
    "broker.id": "renamed: set node.id",
    "broker.id.generation.enable": "leave node.id unset: an id is leased from the metastore",
    "client.quota.callback.class": _NO_PLUGINS,
    "config.providers": "${env:NAME} and ${file:/path} always work as values; other providers are Java classes",
    "control.plane.listener.name": "the controller sends no requests to agents: there is no such listener",
    "controlled.shutdown.": "an agent always shuts down in a controlled way: see shutdown.grace.ms",
    "controller.performance.": _OWN_METRICS,
    "controller.quorum.": _NO_QUORUM,
    "controller.quota.": _NO_QUOTAS,
    "controller.socket.timeout.ms": _NO_CONTROLLER_SESSION,
    "cordoned.log.dirs": _NO_DISK,
    "create.topic.policy.class.name": _NO_PLUGINS,
    "delegation.token.expiry.check.interval.ms": "the active controller checks three times per controller.lease.ms",
    "delegation.token.master.key": "renamed: set delegation.token.secret.key",
    "delete.records.purgatory.": _NO_PURGATORY,
    "delete.topic.enable": "topics can always be deleted",
    "early.start.listeners": "listeners answer after the agent has joined; earlier requests wait",
    "eligible.leader.replicas.enable": _NO_REPLICAS,
    "fetch.purgatory.": _NO_PURGATORY,
    "follower.": _NO_REPLICAS,
    "group.consumer.assignment.interval.ms": _ASSIGNED_AT_ONCE,
    "group.consumer.max.assignment.interval.ms": _ASSIGNED_AT_ONCE,
    "group.consumer.min.assignment.interval.ms": _ASSIGNED_AT_ONCE,
    "group.consumer.regex.refresh.interval.ms": "patterns are matched again when topics come or go",
    "group.coordinator.new.enable": _ALWAYS_SERVED,
    "group.coordinator.rebalance.protocols": _ALWAYS_SERVED,
    "group.coordinator.": "groups are stored in metastore.url: there is no group log to write, load or buffer",
    "group.share.assignment.interval.ms": _ASSIGNED_AT_ONCE,
    "group.share.assignors": _NO_SHARE_GROUPS,
    "group.share.enable": "share groups are served once share.version is 1",
    "group.share.max.assignment.interval.ms": _ASSIGNED_AT_ONCE,
    "group.share.max.groups": "max.committed.offsets limits what groups of all types store",
    "group.share.min.assignment.interval.ms": _ASSIGNED_AT_ONCE,
    "group.share.persister.class.name": _NO_PLUGINS,
    "internal.": "a setting of Kafka's own tests",
    "inter.broker.protocol.version": "each feature has its level, which UpdateFeatures changes",
    "kafka.host": "replaced by listeners",
    "kafka.metrics.": _OWN_METRICS,
    "kafka.port": "replaced by listeners",
    "leader.imbalance.": "leadership follows the set of active agents at once: there is no imbalance",
    "leader.replication.": _NO_REPLICAS,
    "listener.name.": "only the settings of encryption and authentication can be set for one listener",
    "log.cleaner.io.buffer.": "the key map is always filled: see log.cleaner.dedupe.buffer.size for its memory",
    "log.cleaner.threads": "the number of jobs that clean, merge, expire and delete is compactor.threads",
    "log.dir": _NO_DISK,
    "log.dir.failure.timeout.ms": _NO_DISK,
    "log.dirs": _NO_DISK,
    "log.flush.": "nothing is acknowledged before it is stored: there is nothing to flush",
    "log.initial.task.delay.ms": "the active controller schedules this work: see log.retention.check.interval.ms",
    "log.local.": _NO_TIERING,
    "log.message.downconversion.enable": "old message formats are neither stored nor served",
    "log.message.format.version": "old message formats are neither stored nor served",
    "log.message.timestamp.difference.max.ms": "renamed: set log.message.timestamp.before.max.ms and after.max.ms",
    "log.roll.": _NO_LOG_SEGMENTS,
    "log.segment.": _NO_LOG_SEGMENTS,
    "max.connections.per.ip.overrides": "one limit for every address: see max.connections.per.ip",
    "max.incremental.fetch.session.cache.slots": "fixed: an agent keeps as many fetch sessions as Kafka's default",
    "max.request.partition.size.limit": "fixed: DescribeTopicPartitions has Kafka's default limit",
    "metadata.log.dir": _NO_DISK,
    "metadata.log.segment.": "the metadata log is a table of Postgres: it has no segments",
    "metadata.max.idle.interval.ms": "the metadata log is a table of Postgres: it needs no idle records",
    "metadata.max.retention.": "the metadata log is truncated after each snapshot",
    "metric.reporters": _OWN_METRICS,
    "metrics.": _OWN_METRICS,
    "num.io.threads": _NO_THREADS,
    "num.network.threads": _NO_THREADS,
    "num.recovery.threads.per.data.dir": _NO_DISK,
    "num.replica.": _NO_REPLICAS,
    "offsets.commit.": _NO_OFFSETS_TOPIC,
    "offsets.load.buffer.size": _NO_OFFSETS_TOPIC,
    "offsets.retention.check.interval.ms": "fixed: an agent checks a part of the offsets about every 15 to 60 s",
    "offsets.topic.": _NO_OFFSETS_TOPIC,
    "password.encoder.": "secrets are not stored in configs: set them in the agents' files or environment",
    "principal.builder.class": _NO_PLUGINS,
    "producer.id.expiration.check.interval.ms": "fixed: an agent checks a part of the producers about every 15 to 60 s",
    "producer.purgatory.": _NO_PURGATORY,
    "queued.max.": "requests are limited by their bytes, see buffer.memory.bytes, and to 512 of one connection",
    "quorum.": _NO_QUORUM,
    "quota.": _NO_QUOTAS,
    "remote.": _NO_TIERING,
    "replica.": _NO_REPLICAS,
    "replica.selector.class": "a client is directed to agents of its zone: see broker.rack",
    "replication.quota.": _NO_REPLICAS,
    "request.timeout.ms": "fixed: 10 s for a request to the object store, 15 s for a statement of the metastore",
    "reserved.broker.max.id": "leave node.id unset: an id is leased from the metastore",
    "sasl.": _NO_JAAS,
    "sasl.kerberos.": _NO_KERBEROS,
    "sasl.oauthbearer.": "not needed here: see sasl.oauthbearer.jwks.endpoint.url and what begins like it",
    "sasl.mechanism.controller.protocol": _NO_CONTROLLER_SESSION,
    "sasl.mechanism.inter.broker.protocol": _NO_INTER_BROKER,
    "security.inter.broker.protocol": _NO_INTER_BROKER,
    "security.providers": _NO_PLUGINS,
    "server.max.startup.time.ms": "see initial.broker.registration.timeout.ms",
    "share.": _NO_SHARE_GROUPS,
    "socket.listen.backlog.size": "the backlog is fixed",
    "socket.receive.buffer.bytes": "sockets use the buffer size of the operating system",
    "socket.send.buffer.bytes": "sockets use the buffer size of the operating system",
    "socket.connection.setup.": _NO_INTER_BROKER,
    "ssl.": _NO_ENGINE,
    "ssl.allow.": _NO_ENGINE,
    "ssl.keystore.": _NO_STORE,
    "ssl.truststore.": _NO_STORE,
    "store.hedge.after.ms": "replaced by store.hedge.percent: slow PUTs of flushed files are sent twice by default",
    "telemetry.": "client telemetry is not supported",
    "transaction.partition.verification.enable": _ALWAYS_VERIFIED,
    "transaction.state.log.": _NO_STATE_TOPIC,
    "transaction.two.phase.commit.enable": _NO_TWO_PHASES,
    "unclean.leader.election.interval.ms": "no leader can lose data",
    "unstable.": "there are no unstable API or feature versions",
    "zookeeper.": "there is no ZooKeeper: set metastore.url",
}
"""Exact names, and prefixes that end in a dot."""


def why_refused(name: str) -> str | None:
    """The reason why Headrace refuses a Kafka setting; None for any other name, and for one that is declared."""
    if name in overridable():
        return None
    prefixes = [name[: end + 1] for end, letter in enumerate(name) if letter == "."]
    return next((_REFUSED[key] for key in (name, *reversed(prefixes)) if key in _REFUSED), None)


def why_not_in_files(name: str) -> str | None:
    """Return what `why_refused` does, and also for a config that is a cluster-wide default here, not a setting of one
    agent.
    """
    if name not in BROKER_DEFAULTS:
        return why_refused(name)
    topic_config = TOPIC_CONFIGS[BROKER_DEFAULTS[name]]
    if topic_config.why_fixed:
        return topic_config.why_fixed
    if topic_config.effect not in (ConfigEffect.WORKS, ConfigEffect.LATER):
        return topic_config.meaning
    return f"it applies to the whole cluster: headrace configs set {name}=... --brokers"
