"""Kafka's group configs: what can be set for one consumer group of the KIP-848 protocol, share or streams group.

Place: the config requests validate with it, the group coordinator uses it, docs/operate/TOPIC_CONFIGS.md shows it.
Invariant: a group without its own value uses the broker config's value.
Source: KIP-848, KIP-932, KIP-1071, KIP-1240, KIP-1263, GroupConfig.
"""

from __future__ import annotations

import re

from headrace.config.config_definition import INT_MAX, ConfigDefinition, Synonym

HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
SESSION_TIMEOUT = "consumer.session.timeout.ms"
SHARE_HEARTBEAT_INTERVAL = "share.heartbeat.interval.ms"
SHARE_SESSION_TIMEOUT = "share.session.timeout.ms"
SHARE_LOCK_DURATION = "share.record.lock.duration.ms"
SHARE_DELIVERY_LIMIT = "share.delivery.count.limit"
SHARE_RECORD_LOCKS = "share.partition.max.record.locks"
SHARE_OFFSET_RESET = "share.auto.offset.reset"
SHARE_ISOLATION = "share.isolation.level"
SHARE_RENEW = "share.renew.acknowledge.enable"
STREAMS_HEARTBEAT_INTERVAL = "streams.heartbeat.interval.ms"
STREAMS_SESSION_TIMEOUT = "streams.session.timeout.ms"
STREAMS_STANDBYS = "streams.num.standby.replicas"
STREAMS_INITIAL_DELAY = "streams.initial.rebalance.delay.ms"
STREAMS_ASSIGNMENT_INTERVAL = "streams.assignment.interval.ms"
BY_DURATION = "by_duration:"
_DURATION = re.compile(
    r"\+?P(?=.)(?:(?P<days>\+?\d{1,6})D)?(?:T(?=.)(?:(?P<hours>\+?\d{1,6})H)?(?:(?P<minutes>\+?\d{1,8})M)?"
    r"(?:(?P<seconds>\+?\d{1,10})(?:\.(?P<fraction>\d{1,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)


def duration_ms(reset: str) -> int | None:
    """Return the milliseconds of a `by_duration:PnDTnHnMn.nS`; None for any other value."""
    if not reset.startswith(BY_DURATION) or (found := _DURATION.fullmatch(reset.removeprefix(BY_DURATION))) is None:
        return None
    days, hours, minutes, seconds = (int(found[part] or 0) for part in ("days", "hours", "minutes", "seconds"))
    fraction = int((found["fraction"] or "0").ljust(3, "0")[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + fraction


def _why_no_reset(value: str) -> str | None:
    if value in ("latest", "earliest") or duration_ms(value) is not None:
        return None
    return "not latest, earliest or by_duration:PnDTnHnMn.nS"


BOUNDS: dict[str, tuple[str | None, str]] = {
    HEARTBEAT_INTERVAL: ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    SESSION_TIMEOUT: ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    SHARE_HEARTBEAT_INTERVAL: ("group.share.min.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"),
    SHARE_SESSION_TIMEOUT: ("group.share.min.session.timeout.ms", "group.share.max.session.timeout.ms"),
    SHARE_LOCK_DURATION: ("group.share.min.record.lock.duration.ms", "group.share.max.record.lock.duration.ms"),
    SHARE_DELIVERY_LIMIT: ("group.share.min.delivery.count.limit", "group.share.max.delivery.count.limit"),
    SHARE_RECORD_LOCKS: ("group.share.min.partition.max.record.locks", "group.share.max.partition.max.record.locks"),
    STREAMS_HEARTBEAT_INTERVAL: ("group.streams.min.heartbeat.interval.ms", "group.streams.max.heartbeat.interval.ms"),
    STREAMS_SESSION_TIMEOUT: ("group.streams.min.session.timeout.ms", "group.streams.max.session.timeout.ms"),
    STREAMS_STANDBYS: (None, "group.streams.max.standby.replicas"),
    STREAMS_ASSIGNMENT_INTERVAL: (
        "group.streams.min.assignment.interval.ms",
        "group.streams.max.assignment.interval.ms",
    ),
}
"""Config -> the settings with its minimum (None: 0) and its maximum."""
BEATS: tuple[tuple[str, str], ...] = (
    (HEARTBEAT_INTERVAL, SESSION_TIMEOUT),
    (SHARE_HEARTBEAT_INTERVAL, SHARE_SESSION_TIMEOUT),
    (STREAMS_HEARTBEAT_INTERVAL, STREAMS_SESSION_TIMEOUT),
)
"""Heartbeat intervals, each with the session timeout that it has to be below."""

GROUP_CONFIGS: dict[str, ConfigDefinition] = {
    HEARTBEAT_INTERVAL: ConfigDefinition(
        "5000",
        "int",
        "How often members send a heartbeat. Must be between group.consumer.min.heartbeat.interval.ms and"
        " group.consumer.max.heartbeat.interval.ms, and less than the session timeout.",
        synonyms=(Synonym("group.consumer.heartbeat.interval.ms"),),
        low=1,
        high=INT_MAX,
    ),
    SESSION_TIMEOUT: ConfigDefinition(
        "45000",
        "int",
        "A member without a heartbeat for this time is removed. Must be between group.consumer.min.session.timeout.ms"
        " and group.consumer.max.session.timeout.ms.",
        synonyms=(Synonym("group.consumer.session.timeout.ms"),),
        low=1,
        high=INT_MAX,
    ),
    SHARE_HEARTBEAT_INTERVAL: ConfigDefinition(
        "5000",
        "int",
        "How often members of a share group send a heartbeat.",
        synonyms=(Synonym("group.share.heartbeat.interval.ms"),),
        low=1,
        high=INT_MAX,
    ),
    SHARE_SESSION_TIMEOUT: ConfigDefinition(
        "45000",
        "int",
        "A member of a share group without a heartbeat for this time is removed.",
        synonyms=(Synonym("group.share.session.timeout.ms"),),
        low=1,
        high=INT_MAX,
    ),
    SHARE_LOCK_DURATION: ConfigDefinition(
        "30000",
        "int",
        "How long a record belongs to the member that acquired it.",
        synonyms=(Synonym("group.share.record.lock.duration.ms"),),
        low=1,
        high=INT_MAX,
    ),
    SHARE_DELIVERY_LIMIT: ConfigDefinition(
        "5",
        "int",
        "After so many deliveries a record is not delivered again.",
        synonyms=(Synonym("group.share.delivery.count.limit"),),
        low=1,
        high=INT_MAX,
    ),
    SHARE_RECORD_LOCKS: ConfigDefinition(
        "2000",
        "int",
        "The most records of a partition that the group has in flight.",
        synonyms=(Synonym("group.share.partition.max.record.locks"),),
        low=1,
        high=INT_MAX,
    ),
    SHARE_OFFSET_RESET: ConfigDefinition(
        "latest",
        "string",
        "Where a share group begins in a partition: latest, earliest or by_duration: and an ISO-8601 duration.",
        check=_why_no_reset,
    ),
    SHARE_ISOLATION: ConfigDefinition(
        "read_uncommitted",
        "string",
        "Whether a share group gets records of open and aborted transactions.",
        allowed=("read_uncommitted", "read_committed"),
    ),
    SHARE_RENEW: ConfigDefinition(
        "true",
        "boolean",
        "Whether members of a share group may keep a record for another share.record.lock.duration.ms (type Renew). If"
        " not, they get INVALID_RECORD_STATE.",
    ),
    STREAMS_HEARTBEAT_INTERVAL: ConfigDefinition(
        "5000",
        "int",
        "How often members of a streams group send a heartbeat.",
        synonyms=(Synonym("group.streams.heartbeat.interval.ms"),),
        low=1,
        high=INT_MAX,
    ),
    STREAMS_SESSION_TIMEOUT: ConfigDefinition(
        "45000",
        "int",
        "A member of a streams group without a heartbeat for this time is removed.",
        synonyms=(Synonym("group.streams.session.timeout.ms"),),
        low=1,
        high=INT_MAX,
    ),
    STREAMS_STANDBYS: ConfigDefinition(
        "0",
        "int",
        "Standbys of each task with state. At most group.streams.max.standby.replicas.",
        synonyms=(Synonym("group.streams.num.standby.replicas"),),
        low=0,
        high=INT_MAX,
    ),
    STREAMS_INITIAL_DELAY: ConfigDefinition(
        "3000",
        "int",
        "How long an empty streams group waits for more members before it assigns tasks.",
        synonyms=(Synonym("group.streams.initial.rebalance.delay.ms"),),
        low=0,
        high=INT_MAX,
    ),
    STREAMS_ASSIGNMENT_INTERVAL: ConfigDefinition(
        "1000",
        "int",
        "How far apart two assignments of a streams group are at least.",
        synonyms=(Synonym("group.streams.assignment.interval.ms"),),
        low=0,
        high=INT_MAX,
    ),
}
