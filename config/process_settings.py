"""The settings that each process may have for itself: addresses, connections, memory, pace.

Place: the third part of config/settings.py.
Invariant: no setting here decides which data the cluster keeps, or how its processes agree on who does what. Those
are in cluster_settings.py.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from headrace.config.bounds import NodeId, NonNegativeInt, Port, PositiveInt
from headrace.config.http_settings import HttpSettings


class ProcessSettings(HttpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scope `process`."""

    # -- identity and listeners
    node_id: Annotated[
        NodeId | None,
        Meta(description="This agent's node id. Unset: one is leased from the metastore."),
    ] = field(default=None, name="node.id")
    process_roles: Annotated[
        str,
        Meta(
            pattern="^(broker|controller|compactor)(,(broker|controller|compactor))*$",
            description="What this process does. Each role can also run in a separate process.",
            extra_json_schema={"accepted": "broker, controller, compactor, separated by commas"},
        ),
    ] = field(default="broker,controller", name="process.roles")
    broker_rack: Annotated[str | None, Meta(description="The availability zone this agent runs in.")] = field(
        default=None, name="broker.rack"
    )
    listeners: Annotated[
        str,
        Meta(
            description="NAME://host:port, comma-separated: the listeners for clients, the one for other agents if"
            " inter.broker.listener.name names it, and the one for controllers if controller.listener.names names it."
            " Unset: PLAINTEXT://127.0.0.1:9092. Port 0 picks a free one."
        ),
    ] = field(default="", name="listeners")
    advertised_listeners: Annotated[
        str,
        Meta(
            description="NAME://host:port, comma-separated: the address to which clients of each listener are sent,"
            " which includes other agents as clients of their listener. Port 0: the port that is bound. A listener"
            " that is not named advertises its own address, if that is one address."
        ),
    ] = field(default="", name="advertised.listeners")
    inter_broker_listener_name: Annotated[
        str,
        Meta(
            description="The name in listeners that agents use between each other; the same on every agent. Unset: the"
            " first listener."
        ),
    ] = field(default="", name="inter.broker.listener.name")
    controller_listener_names: Annotated[
        str,
        Meta(description="The name in listeners that is for controllers; not advertised to clients. Unset: none."),
    ] = field(default="", name="controller.listener.names")
    listener_security_protocol_map: Annotated[
        str,
        Meta(
            description="NAME:PROTOCOL, comma-separated: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. A listener that it"
            " does not name uses the protocol that its name is, else PLAINTEXT."
        ),
    ] = field(default="", name="listener.security.protocol.map")
    proxy_protocol_listeners: Annotated[
        str,
        Meta(
            description="Names in listeners on which every connection begins with a header of PROXY protocol version 2,"
            " with the client's address. Only behind a load balancer that sends it: clients could name any address."
        ),
    ] = field(default="", name="proxy.protocol.listeners")
    kafka_host: Annotated[str, Meta(description="Deprecated: set listeners, which overrides it.")] = field(
        default="127.0.0.1", name="kafka.host"
    )
    kafka_port: Annotated[Port, Meta(description="Deprecated: set listeners, which overrides it.")] = field(
        default=9092, name="kafka.port"
    )
    advertised_host: Annotated[
        str | None, Meta(description="Deprecated: set advertised.listeners. Not together with it.")
    ] = field(default=None, name="advertised.host")
    advertised_port: Annotated[
        Port | None, Meta(description="Deprecated: set advertised.listeners. Not together with it.")
    ] = field(default=None, name="advertised.port")

    # -- where state is stored
    metastore_url: Annotated[
        str,
        Meta(
            description="postgresql:// address of the metastore. Special characters of user and password are"
            " percent-encoded (@ is %40, / is %2F, % is %25); parts that it leaves out come from PGHOST, PGPORT,"
            " PGUSER, PGPASSWORD and PGDATABASE."
        ),
    ] = field(default="", name="metastore.url")
    metastore_password_command: Annotated[
        str,
        Meta(
            description="Program with arguments that prints the password for metastore.url, for example a token of a"
            " cloud's IAM. It runs at most once a minute, when connections are made. Unset: the one in metastore.url."
        ),
    ] = field(default="", name="metastore.password.command")
    metastore_pool_size: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="Connections that one process keeps to Postgres. Look-ups of readers have separate ones: up to"
            " half as many more.",
        ),
    ] = field(default=8, name="metastore.pool.size")
    metastore_statement_timeout_ms: Annotated[
        PositiveInt, Meta(description="Postgres cancels a statement of Headrace after this time.")
    ] = field(default=15_000, name="metastore.statement.timeout.ms")
    metastore_lock_timeout_ms: Annotated[
        PositiveInt, Meta(description="Postgres stops waiting for a lock after this time.")
    ] = field(default=5_000, name="metastore.lock.timeout.ms")
    commit_shards: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Commit shards of a new cluster; fixed by its first migration. At least as many as a zone will"
            " have agents: those of one shard wait for each other.",
        ),
    ] = field(default=8, name="commit.shards")
    bucket: Annotated[
        str, Meta(description="Where segment files are stored: s3://name/prefix or file:///directory.")
    ] = field(default="", name="bucket")
    s3_endpoint: Annotated[str | None, Meta(description="URL of an S3-compatible server. Unset: AWS.")] = field(
        default=None, name="s3.endpoint"
    )
    s3_region: Annotated[str | None, Meta(description="AWS region. Unset: from the AWS environment.")] = field(
        default=None, name="s3.region"
    )
    s3_path_style: Annotated[
        bool,
        Meta(
            description="Address buckets as host/bucket/key instead of bucket.host/key. Always so if the host is an IP"
            " address, or if the bucket's name has dots and the endpoint is https."
        ),
    ] = field(default=False, name="s3.path.style")
    s3_server_side_encryption: Annotated[
        str,
        Meta(
            pattern="^(|AES256|aws:kms|aws:kms:dsse)$",
            description="How S3 encrypts each object that is put; a put that S3 does not encrypt like this fails."
            " Unset: the bucket's default.",
            extra_json_schema={"accepted": "AES256, aws:kms, aws:kms:dsse, or empty"},
        ),
    ] = field(default="", name="s3.server.side.encryption")
    s3_kms_key_id: Annotated[
        str, Meta(description="ARN of the KMS key, for aws:kms and aws:kms:dsse. Unset: the account's key for S3.")
    ] = field(default="", name="s3.kms.key.id")
    s3_expected_bucket_owner: Annotated[
        str,
        Meta(
            pattern="^([0-9]{12}|)$",
            description="Account id of the bucket's owner: S3 refuses each request if another account owns it, as after"
            " the bucket was deleted and its name taken. Unset: not checked.",
            extra_json_schema={"accepted": "12 digits, or empty"},
        ),
    ] = field(default="", name="s3.expected.bucket.owner")
    s3_max_connections: Annotated[
        PositiveInt, Meta(description="Maximum number of connections to the object store.")
    ] = field(default=64, name="s3.max.connections")
    s3_request_timeout_ms: Annotated[PositiveInt, Meta(description="Timeout of one object store request.")] = field(
        default=10_000, name="s3.request.timeout.ms"
    )
    store_retries: Annotated[
        NonNegativeInt, Meta(description="Number of retries of a retryable object store request.")
    ] = field(default=5, name="store.retries")
    store_hedge_after_ms: Annotated[
        NonNegativeInt,
        Meta(description="Send a second, identical request if the first takes longer than this; 0: never."),
    ] = field(default=0, name="store.hedge.after.ms")

    # -- write path
    linger_ms: Annotated[
        int, Meta(ge=1, le=60_000, description="A buffer is flushed at most this long after its first batch.")
    ] = field(default=100, name="linger.ms")
    linger_idle_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=60_000,
            description="A buffer is flushed early when no byte of a Produce request arrives for this long.",
        ),
    ] = field(default=3, name="linger.idle.ms")
    flush_early_per_second: Annotated[
        NonNegativeInt | None,
        Meta(
            description="Early flushes per second, on average, of files below flush.early.free.bytes. 0 never flushes"
            " early. Unset: 10 on S3, unlimited on a directory.",
        ),
    ] = field(default=None, name="flush.early.per.second")
    flush_early_burst: Annotated[
        PositiveInt, Meta(description="Early flushes that may follow each other at once after a quiet time.")
    ] = field(default=20, name="flush.early.burst")
    flush_early_free_bytes: Annotated[
        PositiveInt,
        Meta(description="A file of at least this size is flushed early without counting as an early flush."),
    ] = field(default=4 * 1024 * 1024, name="flush.early.free.bytes")
    flush_bytes: Annotated[
        int, Meta(ge=65_536, description="A buffer is flushed as soon as it holds this many bytes.")
    ] = field(default=8 * 1024 * 1024, name="flush.bytes")
    upload_parallelism: Annotated[PositiveInt, Meta(description="Number of segment files uploaded in parallel.")] = (
        field(default=8, name="upload.parallelism")
    )
    ingest_merge_max_bytes: Annotated[
        NonNegativeInt,
        Meta(
            description="Small uncompressed batches of non-idempotent producers are merged up to this size"
            " when a file is laid out; 0: never.",
        ),
    ] = field(default=65_536, name="ingest.merge.max.bytes")
    buffer_memory_bytes: Annotated[
        int,
        Meta(ge=16 * 1024 * 1024, description="Bytes of produce requests held in memory; above this producers wait."),
    ] = field(default=256 * 1024 * 1024, name="buffer.memory.bytes")
    socket_request_max_bytes: Annotated[PositiveInt, Meta(description="Largest request frame.")] = field(
        default=104_857_600, name="socket.request.max.bytes"
    )
    connections_max_idle_ms: Annotated[
        PositiveInt, Meta(description="An idle connection is closed after this time.")
    ] = field(default=600_000, name="connections.max.idle.ms")
    max_connections: Annotated[PositiveInt, Meta(description="Maximum number of Kafka connections of one agent.")] = (
        field(default=10_000, name="max.connections")
    )
    max_inflight_requests: Annotated[
        PositiveInt,
        Meta(description="Requests in progress per connection; above this the agent stops reading from it."),
    ] = field(default=64, name="connection.max.inflight.requests")

    # -- read path
    fetch_max_bytes: Annotated[
        PositiveInt, Meta(description="Largest fetch response. A single larger batch is still returned.")
    ] = field(default=57_671_680, name="fetch.max.bytes")
    feed_poll_interval_ms: Annotated[
        PositiveInt,
        Meta(
            description="How often the commit feed is polled while consumers are at the end; otherwise every 100 ms,"
            " and every 10 s once nothing happens."
        ),
    ] = field(default=15, name="feed.poll.interval.ms")
    cache_bytes: Annotated[
        NonNegativeInt, Meta(description="Memory for file chunks that were recently written or read.")
    ] = field(default=128 * 1024 * 1024, name="cache.bytes")
    zone_cache_timeout_ms: Annotated[
        NonNegativeInt,
        Meta(
            description="If an agent of the zone does not deliver a cached chunk within this time,"
            " the object store is read instead. 0: other agents are never asked.",
        ),
    ] = field(default=500, name="zone.cache.timeout.ms")

    # -- membership and groups
    broker_heartbeat_interval_ms: Annotated[PositiveInt, Meta(description="How often an agent renews its lease.")] = (
        field(default=3_000, name="broker.heartbeat.interval.ms")
    )
    initial_broker_registration_timeout_ms: Annotated[
        PositiveInt, Meta(description="An agent that cannot join the cluster within this time exits.")
    ] = field(default=60_000, name="initial.broker.registration.timeout.ms")

    # -- access
    delegation_token_secret_key: Annotated[
        str | None,
        Meta(
            description="Secret for delegation tokens; the same on every agent. Unset: no delegation tokens."
            "  Tokens are issued only on listeners that authenticate."
        ),
    ] = field(default=None, name="delegation.token.secret.key")

    metadata_secret_keys: Annotated[
        str | None,
        Meta(
            description="Keys with which the cluster's secrets in the metastore are sealed: 32 bytes in base64 each,"
            " separated by commas. The first one seals, all of them open. The same on every agent. Unset: secrets are"
            " not sealed. `headrace storage seal-secrets` seals what is there.",
        ),
    ] = field(default=None, name="metadata.secret.keys")

    # -- background work
    compactor_threads: Annotated[
        PositiveInt, Meta(description="Background jobs (compaction, retention, deletion) that one process works on.")
    ] = field(default=1, name="compactor.threads")
    compactor_io_max_bytes_per_second: Annotated[
        PositiveInt,
        Meta(description="Bytes per second that all background jobs of one process read and write together."),
    ] = field(default=100_000_000, name="compactor.io.max.bytes.per.second")
    compaction_cpu_percent: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="CPU time that each job of compactor.threads uses to open, merge and compress"
            " records, in percent of one core: it pauses after each step. 100: no limit.",
        ),
    ] = field(default=100, name="compaction.cpu.percent")

    # -- the process
    shutdown_grace_ms: Annotated[
        PositiveInt, Meta(description="Time that requests in progress have to finish after SIGTERM.")
    ] = field(default=15_000, name="shutdown.grace.ms")
    log_format: Annotated[
        str,
        Meta(
            pattern="^(console|json)$",
            description="How log lines are written: `console` for people, `json` for programs: one object per line"
            " with `timestamp`, `level`, `logger`, `message`, `fields` (what the message has as name=value) and"
            " `exception`.",
        ),
    ] = field(default="console", name="log.format")
    log_level: Annotated[str, Meta(pattern="^(debug|info|warning|error)$", description="Minimum log level.")] = field(
        default="info", name="log.level"
    )
    otel_enable: Annotated[
        bool,
        Meta(
            description="Send spans of produce and fetch requests by OpenTelemetry (OTLP over HTTP), as the standard"
            " OTEL_* environment variables say. Needs the extra `otel`."
        ),
    ] = field(default=False, name="otel.enable")
    topic_metrics_max: Annotated[
        NonNegativeInt,
        Meta(
            description="Maximum number of topics for which an agent shows bytes and records in /metrics by name; all"
            " further ones are one sum. 0: no metrics by topic."
        ),
    ] = field(default=100, name="topic.metrics.max")
    consumer_lag_metrics_max: Annotated[
        NonNegativeInt,
        Meta(
            description="Maximum number of pairs of group and partition for which the active controller shows the lag"
            " in /metrics; those with the largest lag. 0: it does not ask for lags."
        ),
    ] = field(default=1_000, name="consumer.lag.metrics.max")
    audit_log_path: Annotated[
        str,
        Meta(
            description="File for the audit log, one JSON object per line; it may be moved while it is written. Unset:"
            " only the process's log has it, as lines of headrace.audit."
        ),
    ] = field(default="", name="audit.log.path")

    @property
    def metastore_reader_connections(self) -> int:
        """Most connections for look-ups of readers, in addition to metastore.pool.size."""
        return max(1, self.metastore_pool_size // 2)
