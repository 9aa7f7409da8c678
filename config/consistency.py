"""Checks settings that limit each other: bounds, and intervals shorter than the sessions that they keep alive.

Place: when a process starts with a file, and before the cluster gets a new value. Pure.
Invariant: each setting is within the bounds of its declaration already; this module checks them together.
"""

from __future__ import annotations

from headrace.config.settings import Settings


def why_inconsistent(settings: Settings) -> str | None:
    """Return None if the settings fit each other, else the settings and values that do not."""
    session, beat = settings.group_consumer_session_timeout_ms, settings.group_consumer_heartbeat_interval_ms
    return (
        _why_outside(
            "group.consumer.{}session.timeout.ms",
            session,
            settings.group_consumer_min_session_timeout_ms,
            settings.group_consumer_max_session_timeout_ms,
        )
        or _why_outside(
            "group.consumer.{}heartbeat.interval.ms",
            beat,
            settings.group_consumer_min_heartbeat_interval_ms,
            settings.group_consumer_max_heartbeat_interval_ms,
        )
        or _why_not_less(
            "group.consumer.heartbeat.interval.ms", beat, "group.consumer.session.timeout.ms", session, or_equal=False
        )
        or _why_share_groups_are_inconsistent(settings)
        or _why_streams_groups_are_inconsistent(settings)
        or _why_not_less(
            "group.min.session.timeout.ms",
            settings.group_min_session_timeout_ms,
            "group.max.session.timeout.ms",
            settings.group_max_session_timeout_ms,
            or_equal=True,
        )
    )


def _why_share_groups_are_inconsistent(settings: Settings) -> str | None:
    session, beat = settings.group_share_session_timeout_ms, settings.group_share_heartbeat_interval_ms
    bounds = (
        ("session.timeout.ms", session),
        ("heartbeat.interval.ms", beat),
        ("delivery.count.limit", settings.group_share_delivery_count_limit),
        ("record.lock.duration.ms", settings.group_share_record_lock_duration_ms),
        ("partition.max.record.locks", settings.group_share_partition_max_record_locks),
    )
    for name, value in bounds:
        low, high = (getattr(settings, f"group_share_{b}_{name.replace('.', '_')}") for b in ("min", "max"))
        if reason := _why_outside(f"group.share.{{}}{name}", value, low, high):
            return reason
    return _why_not_less(
        "group.share.heartbeat.interval.ms", beat, "group.share.session.timeout.ms", session, or_equal=False
    )


def _why_streams_groups_are_inconsistent(settings: Settings) -> str | None:
    session, beat = settings.group_streams_session_timeout_ms, settings.group_streams_heartbeat_interval_ms
    bounds = (
        ("session.timeout.ms", session),
        ("heartbeat.interval.ms", beat),
        ("assignment.interval.ms", settings.group_streams_assignment_interval_ms),
    )
    for name, value in bounds:
        low, high = (getattr(settings, f"group_streams_{b}_{name.replace('.', '_')}") for b in ("min", "max"))
        if reason := _why_outside(f"group.streams.{{}}{name}", value, low, high):
            return reason
    standbys, most = settings.group_streams_num_standby_replicas, settings.group_streams_max_standby_replicas
    return _why_not_less(
        "group.streams.heartbeat.interval.ms", beat, "group.streams.session.timeout.ms", session, or_equal=False
    ) or _why_not_less(
        "group.streams.num.standby.replicas", standbys, "group.streams.max.standby.replicas", most, or_equal=True
    )


def _why_outside(pattern: str, value: int, low: int, high: int) -> str | None:
    if low <= value <= high:
        return None
    name, least, most = pattern.format(""), pattern.format("min."), pattern.format("max.")
    return f"{name}={value} is not between {least}={low} and {most}={high}"


def _why_not_less(name: str, value: int, limit_name: str, limit: int, *, or_equal: bool) -> str | None:
    if value < limit or (or_equal and value == limit):
        return None
    return f"{name}={value} is not less than {limit_name}={limit}"
