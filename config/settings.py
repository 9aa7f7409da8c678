"""Every setting of Headrace, declared once: name, type, default, bounds, meaning.

Place: below every package; a component takes the part that it needs. `config.load` fills it from
file, environment and flags; docs/CONFIGURATION.md is generated from it.
Invariant: names are Kafka's where Kafka has one; a name ends in its unit; an unknown key is refused.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

PositiveInt = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
OptionalAge = Annotated[int, Meta(ge=-1)] | None


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One flat namespace, as in Kafka's server.properties."""

    # -- identity and listeners
    node_id: Annotated[
        int | None, Meta(description="This agent's node id. Unset: one is leased from the metastore.")
    ] = field(default=None, name="node.id")
    process_roles: Annotated[
        str,
        Meta(
            pattern="^(broker|controller|compactor)(,(broker|controller|compactor))*$",
            description="What this process does; each role may stand in a process of its own.",
            extra_json_schema={"accepted": "broker, controller, compactor, separated by commas"},
        ),
    ] = field(default="broker,controller", name="process.roles")
    broker_rack: Annotated[str | None, Meta(description="The availability zone this agent runs in.")] = field(
        default=None, name="broker.rack"
    )
    listeners: Annotated[
        str,
        Meta(
            description="NAME://host:port, comma-separated: one for clients, and one for controllers if"
            " controller.listener.names says so. Set, it rules over kafka.host and kafka.port."
        ),
    ] = field(default="", name="listeners")
    controller_listener_names: Annotated[
        str,
        Meta(description="Which of listeners is for controllers; clients are never told of it. Unset: none."),
    ] = field(default="", name="controller.listener.names")
    kafka_host: Annotated[str, Meta(description="Address that the Kafka listener binds.")] = field(
        default="127.0.0.1", name="kafka.host"
    )
    kafka_port: Annotated[Port, Meta(description="Port of the Kafka listener; 0 picks a free one.")] = field(
        default=9092, name="kafka.port"
    )
    advertised_listeners: Annotated[
        str,
        Meta(
            description="NAME://host:port that clients are told to connect to; port 0 is the listener's own. Kafka's"
            " form of advertised.host and advertised.port: set this or those."
        ),
    ] = field(default="", name="advertised.listeners")
    advertised_host: Annotated[
        str | None,
        Meta(description="Host that clients are told to connect to. Unset: kafka.host, if that is one address."),
    ] = field(default=None, name="advertised.host")
    advertised_port: Annotated[
        Port | None, Meta(description="Port that clients are told to connect to. Unset: the listener's own.")
    ] = field(default=None, name="advertised.port")
    http_host: Annotated[str, Meta(description="Address of the HTTP listener (health, metrics, status).")] = field(
        default="127.0.0.1", name="http.host"
    )
    http_port: Annotated[Port, Meta(description="Port of the HTTP listener; 0 picks a free one.")] = field(
        default=9644, name="http.port"
    )

    # -- where state lives
    metastore_url: Annotated[str, Meta(description="postgresql:// address of the metastore.")] = field(
        default="", name="metastore.url"
    )
    metastore_pool_size: Annotated[
        int, Meta(ge=1, le=10_000, description="Connections that one agent keeps to Postgres.")
    ] = field(default=8, name="metastore.pool.size")
    metastore_statement_timeout_ms: Annotated[
        PositiveInt, Meta(description="Postgres ends any statement of ours after this long.")
    ] = field(default=15_000, name="metastore.statement.timeout.ms")
    metastore_lock_timeout_ms: Annotated[
        PositiveInt, Meta(description="Postgres gives up waiting for a lock after this long.")
    ] = field(default=5_000, name="metastore.lock.timeout.ms")
    commit_shards: Annotated[
        int, Meta(ge=1, le=1024, description="Commit shards of a new cluster; fixed when it is first migrated.")
    ] = field(default=8, name="commit.shards")
    bucket: Annotated[str, Meta(description="Where segment files go: s3://name/prefix or file:///directory.")] = field(
        default="", name="bucket"
    )
    s3_endpoint: Annotated[str | None, Meta(description="URL of an S3-compatible server. Unset: AWS.")] = field(
        default=None, name="s3.endpoint"
    )
    s3_region: Annotated[str | None, Meta(description="AWS region. Unset: from the AWS environment.")] = field(
        default=None, name="s3.region"
    )
    s3_path_style: Annotated[bool, Meta(description="Address buckets as /bucket/key instead of bucket.host/key.")] = (
        field(default=False, name="s3.path.style")
    )
    s3_max_connections: Annotated[PositiveInt, Meta(description="Connections kept to the object store.")] = field(
        default=64, name="s3.max.connections"
    )
    s3_request_timeout_ms: Annotated[PositiveInt, Meta(description="One object store request may take this long.")] = (
        field(default=10_000, name="s3.request.timeout.ms")
    )
    store_retries: Annotated[
        int, Meta(ge=0, description="How often a retryable object store request is sent again.")
    ] = field(default=5, name="store.retries")
    store_hedge_after_ms: Annotated[
        int, Meta(ge=0, description="Send a second, identical request when the first is slower; 0 never does.")
    ] = field(default=0, name="store.hedge.after.ms")

    # -- write path
    linger_ms: Annotated[
        int, Meta(ge=25, le=60_000, description="A buffer is flushed at the latest this long after its first batch.")
    ] = field(default=100, name="linger.ms")
    segment_bytes: Annotated[
        int, Meta(ge=65_536, description="A buffer is flushed at the latest when it holds this many bytes.")
    ] = field(default=8 * 1024 * 1024, name="flush.bytes")
    upload_parallelism: Annotated[PositiveInt, Meta(description="Segment files uploaded side by side.")] = field(
        default=8, name="upload.parallelism"
    )
    ingest_merge_max_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Small uncompressed batches of producers without idempotence are merged up to this size"
            " as a file is laid out; 0 never does.",
        ),
    ] = field(default=65_536, name="ingest.merge.max.bytes")
    buffer_memory_bytes: Annotated[
        int,
        Meta(ge=16 * 1024 * 1024, description="Bytes of produce requests held at once; above it producers wait."),
    ] = field(default=256 * 1024 * 1024, name="buffer.memory.bytes")
    message_max_bytes: Annotated[PositiveInt, Meta(description="Largest record batch that is accepted.")] = field(
        default=1_048_588, name="message.max.bytes"
    )
    socket_request_max_bytes: Annotated[PositiveInt, Meta(description="Largest request frame.")] = field(
        default=104_857_600, name="socket.request.max.bytes"
    )
    connections_max_idle_ms: Annotated[PositiveInt, Meta(description="An idle connection is closed after this.")] = (
        field(default=600_000, name="connections.max.idle.ms")
    )
    max_connections: Annotated[PositiveInt, Meta(description="Kafka connections that one agent accepts.")] = field(
        default=10_000, name="max.connections"
    )
    max_inflight_requests: Annotated[
        PositiveInt, Meta(description="Requests of one connection in progress at once; above it reading stops.")
    ] = field(default=64, name="connection.max.inflight.requests")
    producer_id_expiration_ms: Annotated[
        PositiveInt, Meta(description="Producer state unused for this long is forgotten.")
    ] = field(default=86_400_000, name="producer.id.expiration.ms")

    file_delete_delay_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="A segment file's object is deleted this long after its last byte died, but never within 75"
            " minutes of its commit. No less than the age of a backup that the metastore may be restored from.",
        ),
    ] = field(default=3_600_000, name="file.delete.delay.ms")

    # -- topics
    auto_create_topics_enable: Annotated[bool, Meta(description="Create a topic when a producer names it.")] = field(
        default=True, name="auto.create.topics.enable"
    )
    num_partitions: Annotated[PositiveInt, Meta(description="Partitions of a topic that states none.")] = field(
        default=1, name="num.partitions"
    )
    default_replication_factor: Annotated[
        PositiveInt, Meta(description="Shown to clients; the object store does the replication.")
    ] = field(default=1, name="default.replication.factor")

    # -- read path
    fetch_max_bytes: Annotated[PositiveInt, Meta(description="Largest fetch response, but for one batch.")] = field(
        default=57_671_680, name="fetch.max.bytes"
    )
    feed_poll_interval_ms: Annotated[
        PositiveInt, Meta(description="How often the commit feed is polled while somebody reads; 100 ms otherwise.")
    ] = field(default=15, name="feed.poll.interval.ms")
    cache_bytes: Annotated[int, Meta(ge=0, description="Memory for recently written and read file chunks.")] = field(
        default=128 * 1024 * 1024, name="cache.bytes"
    )

    zone_cache_timeout_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="An agent of the zone that does not deliver a cached chunk within this time is bypassed:"
            " the object store is read instead. 0 never asks other agents.",
        ),
    ] = field(default=500, name="zone.cache.timeout.ms")

    # -- membership and groups
    broker_heartbeat_interval_ms: Annotated[PositiveInt, Meta(description="How often an agent renews its lease.")] = (
        field(default=3_000, name="broker.heartbeat.interval.ms")
    )
    broker_session_timeout_ms: Annotated[PositiveInt, Meta(description="A silent agent is fenced after this long.")] = (
        field(default=18_000, name="broker.session.timeout.ms")
    )
    initial_broker_registration_timeout_ms: Annotated[
        PositiveInt, Meta(description="An agent that could not join the cluster within this time exits.")
    ] = field(default=60_000, name="initial.broker.registration.timeout.ms")
    metadata_max_lag_records: Annotated[
        int, Meta(ge=0, description="An agent that is further behind the metadata log is not unfenced.")
    ] = field(default=100, name="metadata.max.lag.records")
    controller_lease_ms: Annotated[
        int, Meta(ge=100, description="A standby controller takes over when the active one was silent for this long.")
    ] = field(default=3_000, name="controller.lease.ms")
    metadata_snapshot_bytes: Annotated[
        PositiveInt, Meta(description="A metadata snapshot is made at the latest after so many bytes of log.")
    ] = field(default=20_971_520, name="metadata.log.max.record.bytes.between.snapshots")
    metadata_snapshot_interval_ms: Annotated[
        PositiveInt, Meta(description="A metadata snapshot is made of any new records after this long.")
    ] = field(default=3_600_000, name="metadata.log.max.snapshot.interval.ms")
    group_min_session_timeout_ms: Annotated[PositiveInt, Meta(description="Shortest session a member may ask.")] = (
        field(default=6_000, name="group.min.session.timeout.ms")
    )
    group_max_session_timeout_ms: Annotated[PositiveInt, Meta(description="Longest session a member may ask.")] = field(
        default=1_800_000, name="group.max.session.timeout.ms"
    )
    group_initial_rebalance_delay_ms: Annotated[
        int, Meta(ge=0, description="A new group waits this long for more members before its first rebalance.")
    ] = field(default=3_000, name="group.initial.rebalance.delay.ms")
    group_consumer_session_timeout_ms: Annotated[
        PositiveInt, Meta(description="A member of a consumer group (KIP-848) that is silent for this long is removed.")
    ] = field(default=45_000, name="group.consumer.session.timeout.ms")
    group_consumer_min_session_timeout_ms: Annotated[
        PositiveInt, Meta(description="Least that a group's own consumer.session.timeout.ms can do.")
    ] = field(default=45_000, name="group.consumer.min.session.timeout.ms")
    group_consumer_max_session_timeout_ms: Annotated[
        PositiveInt, Meta(description="Most that a group's own consumer.session.timeout.ms can do.")
    ] = field(default=60_000, name="group.consumer.max.session.timeout.ms")
    group_consumer_heartbeat_interval_ms: Annotated[
        PositiveInt, Meta(description="How often members of consumer groups are told to heartbeat.")
    ] = field(default=5_000, name="group.consumer.heartbeat.interval.ms")
    group_consumer_min_heartbeat_interval_ms: Annotated[
        PositiveInt, Meta(description="Least that a group's own consumer.heartbeat.interval.ms can do.")
    ] = field(default=5_000, name="group.consumer.min.heartbeat.interval.ms")
    group_consumer_max_heartbeat_interval_ms: Annotated[
        PositiveInt, Meta(description="Most that a group's own consumer.heartbeat.interval.ms can do.")
    ] = field(default=15_000, name="group.consumer.max.heartbeat.interval.ms")
    group_consumer_max_size: Annotated[
        PositiveInt, Meta(description="Most members of a consumer group; GROUP_MAX_SIZE_REACHED beyond it.")
    ] = field(default=2_147_483_647, name="group.consumer.max.size")
    group_consumer_assignors: Annotated[
        str,
        Meta(
            pattern="^(uniform|range)(,(uniform|range))*$",
            description="Server-side assignors that members may ask for; the first serves those who ask for none.",
            extra_json_schema={"accepted": "uniform, range, separated by commas"},
        ),
    ] = field(default="uniform,range", name="group.consumer.assignors")
    group_consumer_migration_policy: Annotated[
        str,
        Meta(
            pattern="^(disabled|upgrade|downgrade|bidirectional)$",
            description="Which groups with members may change between the classic and the consumer protocol.",
            extra_json_schema={"accepted": "disabled, upgrade, downgrade, bidirectional"},
        ),
    ] = field(default="bidirectional", name="group.consumer.migration.policy")
    group_max_size: Annotated[
        PositiveInt, Meta(description="Most members of a classic group; GROUP_MAX_SIZE_REACHED beyond it.")
    ] = field(default=2_147_483_647, name="group.max.size")
    offsets_retention_minutes: Annotated[
        PositiveInt,
        Meta(
            description="Offsets go this long after their group lost its last member, and after their commit where"
            " no member consumes the topic."
        ),
    ] = field(default=10_080, name="offsets.retention.minutes")
    offset_metadata_max_bytes: Annotated[
        PositiveInt, Meta(description="Longest metadata text of a committed offset.")
    ] = field(default=4_096, name="offset.metadata.max.bytes")

    # -- access
    delegation_token_secret_key: Annotated[
        str | None,
        Meta(
            description="Makes delegation tokens; the same on every agent. Unset: there are none."
            " Only listeners that authenticate give them out."
        ),
    ] = field(default=None, name="delegation.token.secret.key")
    delegation_token_max_lifetime_ms: Annotated[
        PositiveInt, Meta(description="A delegation token cannot be renewed beyond this age.")
    ] = field(default=604_800_000, name="delegation.token.max.lifetime.ms")
    delegation_token_expiry_time_ms: Annotated[
        PositiveInt, Meta(description="A delegation token that is not renewed expires after this long.")
    ] = field(default=86_400_000, name="delegation.token.expiry.time.ms")

    # -- retention
    log_retention_ms: Annotated[
        OptionalAge, Meta(description="Records older than this go, in topics without retention.ms; -1: never.")
    ] = field(default=None, name="log.retention.ms")
    log_retention_minutes: Annotated[OptionalAge, Meta(description="As log.retention.ms, which rules over it.")] = (
        field(default=None, name="log.retention.minutes")
    )
    log_retention_hours: Annotated[
        int, Meta(ge=-1, description="As log.retention.ms and log.retention.minutes, which rule over it.")
    ] = field(default=168, name="log.retention.hours")
    log_retention_bytes: Annotated[
        int,
        Meta(ge=-1, description="A partition's oldest records go beyond this size, without retention.bytes; -1: none."),
    ] = field(default=-1, name="log.retention.bytes")
    log_retention_check_interval_ms: Annotated[
        PositiveInt, Meta(description="How often it is looked for records that retention removes.")
    ] = field(default=300_000, name="log.retention.check.interval.ms")

    # -- background work
    log_cleaner_threads: Annotated[
        PositiveInt, Meta(description="Background jobs (compaction, retention, deletion) that one process works on.")
    ] = field(default=1, name="log.cleaner.threads")
    log_cleaner_io_max_bytes_per_second: Annotated[
        PositiveInt, Meta(description="Bytes a second that one process's background jobs read and write, together.")
    ] = field(default=100_000_000, name="log.cleaner.io.max.bytes.per.second")
    log_cleaner_backoff_ms: Annotated[
        PositiveInt, Meta(description="How often it is looked for files that are worth compacting.")
    ] = field(default=15_000, name="log.cleaner.backoff.ms")
    compaction_min_age_ms: Annotated[
        int, Meta(ge=0, description="Younger segment files are left alone: tail readers have them in their caches.")
    ] = field(default=30_000, name="compaction.min.age.ms")
    compaction_max_age_ms: Annotated[
        PositiveInt,
        Meta(
            description="Flushed files are merged at the latest after this; merged ones rewritten after six times it."
        ),
    ] = field(default=600_000, name="compaction.max.age.ms")
    compaction_file_bytes: Annotated[
        int,
        Meta(
            ge=1_048_576,
            le=1_073_741_824,
            description="About how large compaction makes files; a job holds up to three times as much in memory.",
        ),
    ] = field(default=67_108_864, name="compaction.file.bytes")
    compaction_cpu_percent: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="Of one core's time, how much each job of log.cleaner.threads takes to open, merge and compress"
            " records: it rests after each step. 100: no limit.",
        ),
    ] = field(default=100, name="compaction.cpu.percent")
    compaction_spark_min_bytes: Annotated[
        int,
        Meta(ge=0, description="Compaction jobs with so many live bytes are left to the Spark application; 0: none."),
    ] = field(default=0, name="compaction.spark.min.bytes")
    compaction_spark_max_wait_ms: Annotated[
        int,
        Meta(ge=0, description="Jobs left to the Spark application that it did not finish in this time are done here."),
    ] = field(default=3_600_000, name="compaction.spark.max.wait.ms")

    # -- the process
    shutdown_grace_ms: Annotated[
        PositiveInt, Meta(description="After SIGTERM, requests in progress get this long to finish.")
    ] = field(default=15_000, name="shutdown.grace.ms")
    log_level: Annotated[str, Meta(pattern="^(debug|info|warning|error)$", description="Least severe line logged.")] = (
        field(default="info", name="log.level")
    )
