"""The settings that have one value in the cluster: what is kept and for how long, leases, limits of groups.

Place: the fifth part of config/settings.py.
Invariant: two processes with different values would disagree about data or about who coordinates. So the value in
the metadata log applies to every process. The value of a file applies only while the cluster has none
(docs/decisions/0033-one-value-per-cluster.md).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from headrace.config.bounds import LONG_MAX, NonNegativeInt, PositiveInt
from headrace.config.client_limits import ClientLimits


class ClusterSettings(ClientLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adds scope `cluster`."""

    # -- write path
    producer_id_expiration_ms: Annotated[
        PositiveInt, Meta(description="Producer state that is unused for this time is removed.")
    ] = field(default=86_400_000, name="producer.id.expiration.ms")
    transaction_max_timeout_ms: Annotated[
        PositiveInt,
        Meta(
            description="The longest transaction.timeout.ms that a producer may ask for; beyond it"
            " INVALID_TRANSACTION_TIMEOUT."
        ),
    ] = field(default=900_000, name="transaction.max.timeout.ms")
    transactional_id_expiration_ms: Annotated[
        PositiveInt,
        Meta(
            description="A transactional id that is unused for this time is forgotten, but never one with an open"
            " transaction."
        ),
    ] = field(default=604_800_000, name="transactional.id.expiration.ms")
    transaction_timed_out_interval_ms: Annotated[
        PositiveInt, Meta(description="How often the active controller looks for transactions to abort.")
    ] = field(default=10_000, name="transaction.abort.timed.out.transaction.cleanup.interval.ms")
    transaction_expired_interval_ms: Annotated[
        PositiveInt, Meta(description="How often the active controller looks for transactional ids to forget.")
    ] = field(default=3_600_000, name="transaction.remove.expired.transaction.cleanup.interval.ms")
    file_delete_delay_ms: Annotated[
        NonNegativeInt,
        Meta(
            description="A segment file's object is deleted this long after its last live byte was removed, but never"
            " within 75 minutes of its commit. At least the age of the oldest metastore backup that may be restored.",
        ),
    ] = field(default=3_600_000, name="file.delete.delay.ms")
    segments_tombstone_retention_ms: Annotated[
        NonNegativeInt,
        Meta(
            description="A tombstone in `__remote_log_metadata` is removed after this time, as by delete.retention.ms."
        ),
    ] = field(default=86_400_000, name="segments.tombstone.retention.ms")
    segments_audit_retention_ms: Annotated[
        PositiveInt, Meta(description="Records of `__remote_log_metadata_audit` are removed after this time.")
    ] = field(default=7_776_000_000, name="segments.audit.retention.ms")
    segments_cleanup_interval_ms: Annotated[
        PositiveInt, Meta(description="Pause between two rounds that end orphaned keys of remote segments.")
    ] = field(default=60_000, name="segments.cleanup.interval.ms")
    read_pin_max_ms: Annotated[
        PositiveInt,
        Meta(
            description="The longest time for which a Spark read or an export may keep the files that it needs"
            " (option readPinMs).",
        ),
    ] = field(default=86_400_000, name="read.pin.max.ms")

    # -- topics
    auto_create_topics_enable: Annotated[
        bool, Meta(description="Create a topic when a producer or consumer asks for its metadata.")
    ] = field(default=True, name="auto.create.topics.enable")
    max_topics: Annotated[
        PositiveInt,
        Meta(description="Topics of the cluster; beyond it POLICY_VIOLATION. Automatic creation may use half of it."),
    ] = field(default=10_000, name="max.topics")
    max_partitions: Annotated[
        PositiveInt,
        Meta(description="Partitions of the cluster; beyond it POLICY_VIOLATION. Automatic creation may use half."),
    ] = field(default=200_000, name="max.partitions")
    max_transactional_ids: Annotated[
        PositiveInt,
        Meta(
            description="Transactional ids of the cluster; beyond it POLICY_VIOLATION for new ones. Unused ones are"
            " forgotten after transactional.id.expiration.ms."
        ),
    ] = field(default=1_000_000, name="max.transactional.ids")
    max_producer_states: Annotated[
        PositiveInt,
        Meta(
            description="Producers of all partitions, each counted once a partition; beyond it POLICY_VIOLATION for new"
            " producers. Those that are silent are forgotten after producer.id.expiration.ms."
        ),
    ] = field(default=10_000_000, name="max.producer.states")
    max_committed_offsets: Annotated[
        PositiveInt,
        Meta(
            description="Committed offsets and groups of the cluster; beyond it POLICY_VIOLATION for new ones."
            " Unused ones are forgotten after offsets.retention.minutes."
        ),
    ] = field(default=10_000_000, name="max.committed.offsets")
    num_partitions: Annotated[PositiveInt, Meta(description="Default number of partitions of a new topic.")] = field(
        default=1, name="num.partitions"
    )
    halving_settle_ms: Annotated[
        PositiveInt,
        Meta(
            description="A topic that was halved for unmodified clients doubles or halves again after this time at the"
            " earliest: longer than any producer's delivery.timeout.ms."
        ),
    ] = field(default=300_000, name="halving.settle.ms")
    default_replication_factor: Annotated[
        PositiveInt, Meta(description="Only shown to clients: the object store replicates the data.")
    ] = field(default=1, name="default.replication.factor")

    # -- addresses
    advertised_shared: Annotated[
        bool,
        Meta(
            description="All agents have one address, that of a load balancer: clients see one broker, and agents"
            " forward what needs one of them. Needs inter.broker.listener.name."
        ),
    ] = field(default=False, name="advertised.shared")

    # -- membership and groups
    broker_session_timeout_ms: Annotated[
        PositiveInt, Meta(description="An agent that does not renew its lease for this time is fenced.")
    ] = field(default=18_000, name="broker.session.timeout.ms")
    metadata_max_lag_records: Annotated[
        NonNegativeInt,
        Meta(description="An agent is unfenced only when it is at most this far behind the metadata log."),
    ] = field(default=100, name="metadata.max.lag.records")
    controller_lease_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=LONG_MAX,
            description="A standby controller takes over within this time after the active one fails.",
        ),
    ] = field(default=3_000, name="controller.lease.ms")
    metadata_snapshot_bytes: Annotated[
        PositiveInt, Meta(description="A metadata snapshot is written after at most this many bytes of log.")
    ] = field(default=20_971_520, name="metadata.log.max.record.bytes.between.snapshots")
    metadata_snapshot_interval_ms: Annotated[
        PositiveInt,
        Meta(description="A metadata snapshot is written after at most this time if there are new records."),
    ] = field(default=3_600_000, name="metadata.log.max.snapshot.interval.ms")
    group_min_session_timeout_ms: Annotated[
        PositiveInt, Meta(description="Shortest session timeout a member may request.")
    ] = field(default=6_000, name="group.min.session.timeout.ms")
    group_max_session_timeout_ms: Annotated[
        PositiveInt, Meta(description="Longest session timeout a member may request.")
    ] = field(default=1_800_000, name="group.max.session.timeout.ms")
    group_initial_rebalance_delay_ms: Annotated[
        NonNegativeInt, Meta(description="A new group waits this long for more members before its first rebalance.")
    ] = field(default=3_000, name="group.initial.rebalance.delay.ms")
    group_consumer_session_timeout_ms: Annotated[
        PositiveInt,
        Meta(description="A member of a consumer group (KIP-848) that sends no heartbeat for this time is removed."),
    ] = field(default=45_000, name="group.consumer.session.timeout.ms")
    group_consumer_min_session_timeout_ms: Annotated[
        PositiveInt, Meta(description="Smallest consumer.session.timeout.ms that a group config may set.")
    ] = field(default=45_000, name="group.consumer.min.session.timeout.ms")
    group_consumer_max_session_timeout_ms: Annotated[
        PositiveInt, Meta(description="Largest consumer.session.timeout.ms that a group config may set.")
    ] = field(default=60_000, name="group.consumer.max.session.timeout.ms")
    group_consumer_heartbeat_interval_ms: Annotated[
        PositiveInt, Meta(description="Heartbeat interval of the members of consumer groups (KIP-848).")
    ] = field(default=5_000, name="group.consumer.heartbeat.interval.ms")
    group_consumer_min_heartbeat_interval_ms: Annotated[
        PositiveInt, Meta(description="Smallest consumer.heartbeat.interval.ms that a group config may set.")
    ] = field(default=5_000, name="group.consumer.min.heartbeat.interval.ms")
    group_consumer_max_heartbeat_interval_ms: Annotated[
        PositiveInt, Meta(description="Largest consumer.heartbeat.interval.ms that a group config may set.")
    ] = field(default=15_000, name="group.consumer.max.heartbeat.interval.ms")
    group_consumer_max_size: Annotated[
        PositiveInt,
        Meta(description="Maximum number of members of a consumer group; beyond it GROUP_MAX_SIZE_REACHED."),
    ] = field(default=2_147_483_647, name="group.consumer.max.size")
    group_consumer_assignors: Annotated[
        str,
        Meta(
            pattern="^(uniform|range)(,(uniform|range))*$",
            description="Server-side assignors that members may request; the first is the default.",
            extra_json_schema={"accepted": "uniform, range, separated by commas"},
        ),
    ] = field(default="uniform,range", name="group.consumer.assignors")
    group_consumer_migration_policy: Annotated[
        str,
        Meta(
            pattern="^(disabled|upgrade|downgrade|bidirectional)$",
            description="Directions in which a group with members may change between the two group protocols.",
            extra_json_schema={"accepted": "disabled, upgrade, downgrade, bidirectional"},
        ),
    ] = field(default="bidirectional", name="group.consumer.migration.policy")
    group_max_size: Annotated[
        PositiveInt, Meta(description="Maximum number of members of a classic group; beyond it GROUP_MAX_SIZE_REACHED.")
    ] = field(default=2_147_483_647, name="group.max.size")
    group_late_parent_ms: Annotated[
        PositiveInt,
        Meta(
            description="A group that has not committed up to the boundary of a partition that was split in two, this"
            " long after its coordinator first saw that, is shown by headrace_group_late_seconds."
        ),
    ] = field(default=300_000, name="group.late.parent.ms")
    offsets_retention_minutes: Annotated[
        PositiveInt,
        Meta(
            description="Committed offsets expire this long after their group lost its last member, or after"
            " their commit if no member consumes the topic."
        ),
    ] = field(default=10_080, name="offsets.retention.minutes")
    offset_metadata_max_bytes: Annotated[
        PositiveInt, Meta(description="Maximum length of the metadata string of a committed offset.")
    ] = field(default=4_096, name="offset.metadata.max.bytes")

    # -- access
    delegation_token_max_lifetime_ms: Annotated[
        PositiveInt, Meta(description="A delegation token cannot be renewed beyond this age.")
    ] = field(default=604_800_000, name="delegation.token.max.lifetime.ms")
    delegation_token_expiry_time_ms: Annotated[
        PositiveInt, Meta(description="A delegation token that is not renewed expires after this time.")
    ] = field(default=86_400_000, name="delegation.token.expiry.time.ms")
    delegation_token_max_per_owner: Annotated[
        PositiveInt,
        Meta(description="Delegation tokens of one owner at a time; beyond it POLICY_VIOLATION for new ones."),
    ] = field(default=1_000, name="delegation.token.max.per.owner")

    # -- retention
    log_retention_check_interval_ms: Annotated[
        PositiveInt, Meta(description="How often retention looks for records to delete.")
    ] = field(default=300_000, name="log.retention.check.interval.ms")

    # -- background work
    compaction_interval_ms: Annotated[
        PositiveInt, Meta(description="How often compaction looks for files to merge.")
    ] = field(default=15_000, name="compaction.interval.ms")
    log_cleaner_enable: Annotated[
        bool, Meta(description="Remove superseded records of topics with cleanup.policy=compact.")
    ] = field(default=True, name="log.cleaner.enable")
    log_cleaner_backoff_ms: Annotated[
        PositiveInt, Meta(description="How often log compaction by key looks for partitions to clean.")
    ] = field(default=15_000, name="log.cleaner.backoff.ms")
    log_cleaner_dedupe_buffer_size: Annotated[
        int,
        Meta(
            ge=1_048_576,
            le=LONG_MAX,
            description="Memory for the keys of one pass of log compaction by key, per job: 112 bytes per key. A pass"
            " ends where it is full.",
        ),
    ] = field(default=134_217_728, name="log.cleaner.dedupe.buffer.size")
    log_cleaner_io_max_bytes_per_second: Annotated[
        PositiveInt,
        Meta(
            description="Bytes per second that log compaction by key reads and writes in one process, within"
            " compactor.io.max.bytes.per.second. A change takes effect within 15 s, also in running jobs.",
        ),
    ] = field(default=LONG_MAX, name="log.cleaner.io.max.bytes.per.second")
    compaction_min_age_ms: Annotated[
        NonNegativeInt,
        Meta(
            description="Younger segment files are not compacted: consumers near the log end read them from caches.",
        ),
    ] = field(default=30_000, name="compaction.min.age.ms")
    compaction_max_age_ms: Annotated[
        PositiveInt,
        Meta(
            description="Flushed files are merged after at most this time; merged files are rewritten"
            " after six times this time."
        ),
    ] = field(default=600_000, name="compaction.max.age.ms")
    compaction_file_bytes: Annotated[
        int,
        Meta(
            ge=1_048_576,
            le=1_073_741_824,
            description="Target size of compacted files; a job uses up to three times as much memory.",
        ),
    ] = field(default=67_108_864, name="compaction.file.bytes")
    compaction_spark_min_bytes: Annotated[
        NonNegativeInt,
        Meta(
            description="Compaction jobs of at least this many live bytes, and cleaning of partitions with more keys"
            " than log.cleaner.dedupe.buffer.size holds, are left to the Spark application; 0: none.",
        ),
    ] = field(default=0, name="compaction.spark.min.bytes")
    compaction_spark_max_wait_ms: Annotated[
        NonNegativeInt,
        Meta(description="If the Spark application does not finish a job within this time, this process does it."),
    ] = field(default=3_600_000, name="compaction.spark.max.wait.ms")
