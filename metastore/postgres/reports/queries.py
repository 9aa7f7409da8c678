"""The read side for people and tools, as SQLAlchemy Core queries over the columns that they read.

Place: behind reports.py, compiled for reports.py; on no path of records.
Invariant: reads only, of one snapshot, without locks. Columns have the names and the order of the value that
reports.py makes of a row. A number that has a name in metastore/postgres/sql_files.py is written by that name.
migrations/ is the schema: tests compare these tables with a migrated database.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Integer,
    LargeBinary,
    Select,
    TableClause,
    Text,
    Uuid,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    func,
    literal_column,
    select,
    table,
    union_all,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from headrace.metastore.api.jobs import READ_PIN

_DIALECT = PGDialect_psycopg()  # type: ignore[no-untyped-call]


def _table(name: str, columns: str) -> TableClause:
    """The columns of a table that reports read."""
    return table(name, *(column(each) for each in columns.split()))


agents = _table("agents", "node_id")
agent_leases = _table("agent_leases", "node_id metadata_offset last_contact_at")
consumer_groups = _table("consumer_groups", "group_id kind state saved")
extents = _table(
    "extents",
    "partition_key base_offset last_offset file_id position length leader_epoch max_timestamp appended_at",
)
group_offsets = _table("group_offsets", "group_id partition_key committed_offset")
jobs = _table(
    "jobs",
    "job_id kind key state priority period_ms due_at epoch worker attempts progress last_error created_at leased_at"
    " ended_at",
)
partitions = _table("partitions", "partition_key topic_id partition_index removed_bytes")
partition_heads = _table("partition_heads", "partition_key high_watermark")
producer_state = _table("producer_state", "partition_key producer_id epoch next_sequence ring")
segment_files = _table("segment_files", "file_id state level size live_bytes committed_at dead_at")
topics = _table("topics", "topic_id name")
transaction_partitions = _table("transaction_partitions", "partition_key producer_id first_offset")


LIMIT = bindparam("limit", type_=Integer())
KEYS = bindparam("keys", type_=ARRAY(BigInteger()))
ZERO = literal_column("0", Integer())
UNFINISHED = jobs.c.state.in_((func.job_waiting(), func.job_leased()))
FINISHED = jobs.c.state.in_((func.job_done(), func.job_given_up()))
PIN = literal_column(f"'{READ_PIN}'", Text())
IS_LIVE_FILE = segment_files.c.state == func.file_live()


def compiled(name: str) -> str:
    """The text of the query that the function `name` of this module makes."""
    query: Select[Any] = globals()[name]()
    return str(query.compile(dialect=_DIALECT))


def list_jobs() -> Select[Any]:
    """The unfinished by id, then the newest of the finished. Cost: the unfinished, and as many finished as asked."""
    unfinished = select(literal_column("0").label("part"), jobs).where(UNFINISHED).order_by(jobs.c.job_id).limit(LIMIT)
    finished = select(literal_column("1"), jobs).where(FINISHED).order_by(jobs.c.ended_at.desc()).limit(LIMIT)
    listed = union_all(unfinished, finished).subquery("listed")
    job = listed.c
    return (
        select(
            job.job_id,
            job.kind,
            job.key,
            job.state,
            job.priority,
            job.period_ms,
            func.to_ms(job.due_at).label("due_ms"),
            job.epoch,
            job.worker,
            job.attempts,
            job.progress,
            job.last_error,
            func.to_ms(job.created_at).label("created_ms"),
            func.to_ms(job.leased_at).label("leased_ms"),
            func.to_ms(job.ended_at).label("ended_ms"),
        )
        .order_by(job.part, case((job.part == ZERO, job.job_id)), job.ended_at.desc(), job.job_id.desc())
        .limit(LIMIT)
    )


def count_jobs() -> Select[Any]:
    """Count the jobs by kind and state, with how late the longest due of them is. A read pin is never late: no
    worker takes it.

    Cost: one row per job; finished ones stay a day.
    """
    overdue = func.greatest(func.to_ms(func.wall_time()) - func.to_ms(func.min(jobs.c.due_at)), ZERO)
    return (
        select(
            jobs.c.kind,
            jobs.c.state,
            func.count().label("jobs"),
            case((and_(UNFINISHED, jobs.c.kind != PIN), overdue), else_=ZERO).label("overdue_ms"),
        )
        .group_by(jobs.c.kind, jobs.c.state)
        .order_by(jobs.c.kind, jobs.c.state)
    )


def audit_files() -> Select[Any]:
    """The next files by id with all their extents, packed (packing.sql). Cost: O(files and extents returned)."""
    packed = func.pack_extent(
        extents.c.partition_key,
        extents.c.base_offset,
        extents.c.last_offset,
        extents.c.file_id,
        extents.c.position,
        extents.c.length,
        extents.c.leader_epoch,
        extents.c.max_timestamp,
    )
    nothing = literal_column("''::bytea", LargeBinary())
    of_file = select(
        func.coalesce(func.string_agg(packed, aggregate_order_by(nothing, extents.c.position.asc())), nothing)
    ).where(extents.c.file_id == segment_files.c.file_id)
    file = segment_files.c
    return (
        select(
            file.file_id,
            file.state,
            file.level,
            file.size,
            file.live_bytes,
            func.to_ms(file.committed_at).label("committed_ms"),
            func.to_ms(file.dead_at).label("dead_ms"),
            of_file.scalar_subquery().label("extents"),
        )
        .where(file.file_id > bindparam("after", type_=Uuid()))
        .order_by(file.file_id)
        .limit(LIMIT)
    )


def file_totals() -> Select[Any]:
    """Return totals of files, for a progress bar. Cost: a scan of segment_files."""
    live = func.count().filter(and_(IS_LIVE_FILE, segment_files.c.dead_at.is_(None)))
    return select(live.label("live"), func.count().label("total"), func.wall_ms().label("wall_ms")).select_from(
        segment_files
    )


def statistics() -> Select[Any]:
    """Cost: scans segment_files and the extents' primary key."""
    size, live = (
        cast(func.coalesce(func.sum(what), ZERO), BigInteger())
        for what in (segment_files.c.size, segment_files.c.live_bytes)
    )
    everything = select(func.count()).select_from(extents).scalar_subquery()
    return select(
        func.count().label("files"), size.label("bytes"), live.label("live_bytes"), everything.label("extents")
    ).where(IS_LIVE_FILE)


def file_levels() -> Select[Any]:
    """Return how many files and bytes each level has, by state. Cost: a scan of segment_files."""
    file = segment_files.c
    size, live = (cast(func.sum(what), BigInteger()) for what in (file.size, file.live_bytes))
    return (
        select(file.level, file.state, func.count().label("files"), size.label("bytes"), live.label("live_bytes"))
        .group_by(file.level, file.state)
        .order_by(file.level, file.state)
    )


def partition_names() -> Select[Any]:
    """Return the names of partitions by key; keys of deleted partitions are left out. Cost: an index probe per key."""
    partition = partitions.c
    return select(partition.partition_key, partition.topic_id, partition.partition_index).where(
        partition.partition_key == any_(KEYS)
    )


def partition_sizes() -> Select[Any]:
    """Bytes of stored batches, in order of the keys; -1 for a partition that is gone. Cost: two probes per key."""
    asked = (
        func.unnest(KEYS).table_valued(column("key", BigInteger()), with_ordinality="number", name="asked")
    ).render_derived()
    size = func.stored_bytes(partitions.c.partition_key) - partitions.c.removed_bytes
    return (
        select(func.coalesce(size, literal_column("-1")).label("size"))
        .select_from(asked)
        .outerjoin(partitions, partitions.c.partition_key == asked.c.key)
        .order_by(asked.c.number)
    )


def consumer_lags() -> Select[Any]:
    """The largest lags, with the number of all, and how old the extent with each next record is.

    Cost: a scan of group_offsets, a probe or a scan of the heads, and a probe of the extents for each row returned.
    """
    offset, head = group_offsets.c, partition_heads.c
    lag = func.greatest(head.high_watermark - offset.committed_offset, ZERO)
    largest = (
        select(
            offset.group_id,
            offset.partition_key,
            offset.committed_offset,
            lag.label("records"),
            func.count().over().label("pairs"),
        )
        .join(partitions, partitions.c.partition_key == offset.partition_key)
        .join(partition_heads, head.partition_key == offset.partition_key)
        .order_by(lag.desc(), offset.group_id, offset.partition_key)
        .limit(LIMIT)
        .subquery("largest")
    )
    found = largest.c
    own_ms = case((extents.c.max_timestamp >= ZERO, extents.c.max_timestamp))
    next_record = (  # a marker has no timestamp, nor does what cleaning emptied: they have the time of their append
        select(func.coalesce(own_ms, func.to_ms(extents.c.appended_at)))
        .where(extents.c.partition_key == found.partition_key, extents.c.last_offset >= found.committed_offset)
        .order_by(extents.c.last_offset)
        .limit(literal_column("1"))
        .scalar_subquery()
    )
    age_ms = func.greatest(func.to_ms(func.wall_time()) - next_record, ZERO)
    return select(
        found.group_id,
        found.partition_key,
        found.records,
        found.pairs,
        case((found.records > ZERO, func.coalesce(age_ms, ZERO)), else_=ZERO).label("age_ms"),
    ).order_by(found.records.desc(), found.group_id, found.partition_key)


def topic_sizes() -> Select[Any]:
    """The largest topics by bytes of stored batches, with the sum and the number of all.

    Cost: a scan of the partitions, and a probe of the heads for each.
    """
    stored = func.coalesce(func.stored_bytes(partitions.c.partition_key), ZERO)
    size = func.sum(stored - partitions.c.removed_bytes)
    return (
        select(
            partitions.c.topic_id,
            cast(size, BigInteger()).label("size_bytes"),
            cast(func.sum(size).over(), BigInteger()).label("total_bytes"),
            func.count().over().label("topics"),
        )
        .group_by(partitions.c.topic_id)
        .order_by(size.desc(), partitions.c.topic_id)
        .limit(LIMIT)
    )


def describe_producers() -> Select[Any]:
    """Return what partitions remember of their producers; the append time is the newest of the ring. The offset is
    where the producer's open transaction begins in the partition, -1 if there is none.
    """
    producer, begun = producer_state.c, transaction_partitions.c
    last_sequence = case(
        (producer.next_sequence == ZERO, literal_column("2147483647")),
        else_=producer.next_sequence - literal_column("1"),
    )
    return (
        select(
            producer.partition_key,
            producer.producer_id,
            producer.epoch.label("producer_epoch"),
            last_sequence.label("last_sequence"),
            func.ring_number(producer.ring, literal_column("16")).label("last_timestamp"),
            func.coalesce(begun.first_offset, literal_column("-1")).label("transaction_start"),
        )
        .join(partitions, partitions.c.partition_key == producer.partition_key)
        .outerjoin(
            transaction_partitions,
            and_(begun.partition_key == producer.partition_key, begun.producer_id == producer.producer_id),
        )
        .where(producer.partition_key == any_(KEYS))
        .order_by(producer.partition_key, producer.producer_id)
    )


def list_agent_leases() -> Select[Any]:
    """The last heartbeat of each registered agent. Cost: one row per agent."""
    lease = agent_leases.c
    return (
        select(lease.node_id, lease.metadata_offset, func.to_ms(lease.last_contact_at).label("last_contact_ms"))
        .join(agents, agents.c.node_id == lease.node_id)
        .order_by(lease.node_id)
    )


def stored_groups() -> Select[Any]:
    """The next groups of a kind with members, by id, as they are stored. Cost: a scan of the groups, and the bytes of
    those returned.
    """
    group = consumer_groups.c
    return (
        select(group.group_id, group.saved.label("data"))
        .where(
            group.kind == bindparam("kind", type_=Text()),
            group.state != literal_column("'Empty'"),
            group.saved != literal_column("''::bytea", LargeBinary()),
            group.group_id > bindparam("after", type_=Text()),
        )
        .order_by(group.group_id)
        .limit(LIMIT)
    )


def count_topic_extents() -> Select[Any]:
    """Count the extents of the topic's partitions now. Cost: an index range per partition."""
    return (
        select(func.count().label("extents"))
        .select_from(topics)
        .join(partitions, partitions.c.topic_id == topics.c.topic_id)
        .join(extents, extents.c.partition_key == partitions.c.partition_key)
        .where(topics.c.name == bindparam("topic", type_=Text()))
    )
