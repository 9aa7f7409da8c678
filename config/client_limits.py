"""The settings that bound what clients may use of one agent: connections, memory, elements, groups, sessions.

Place: the fourth part of config/settings.py, scope `process`. docs/LIMITS.md says what happens at each limit.
Invariant: the defaults fit an agent into 2 GiB.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from headrace.config.bounds import PositiveInt
from headrace.config.process_settings import ProcessSettings

MIB = 1024 * 1024
INT_MAX = 2**31 - 1


class ClientLimits(ProcessSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adds to scope `process`."""

    # -- connections
    max_connections_per_ip: Annotated[
        PositiveInt, Meta(description="Maximum number of Kafka connections from one address to one agent.")
    ] = field(default=INT_MAX, name="max.connections.per.ip")
    max_connection_creation_rate: Annotated[
        PositiveInt, Meta(description="New Kafka connections per second of one agent; it closes what comes faster.")
    ] = field(default=INT_MAX, name="max.connection.creation.rate")
    max_unauthenticated_connections: Annotated[
        PositiveInt,
        Meta(
            description="Maximum number of Kafka connections of one agent before PROXY header, TLS handshake and"
            " authentication are complete; beyond it the oldest of the address with the most of them is closed."
        ),
    ] = field(default=500, name="max.unauthenticated.connections")
    unauthenticated_connections_max_ms: Annotated[
        PositiveInt,
        Meta(description="PROXY header, TLS handshake and authentication must be complete after this time."),
    ] = field(default=60_000, name="unauthenticated.connections.max.ms")
    http_max_connections: Annotated[
        PositiveInt, Meta(description="Maximum number of connections to the HTTP listener.")
    ] = field(default=64, name="http.max.connections")

    # -- requests and replies
    control_request_max_bytes: Annotated[
        int, Meta(ge=65_536, description="Largest request frame of every API but Produce.")
    ] = field(default=8 * MIB, name="control.request.max.bytes")
    request_max_elements: Annotated[
        int,
        Meta(
            ge=1_000,
            description="Elements that the arrays of one request may have in total; beyond it INVALID_REQUEST,"
            " or the connection ends where a response cannot say so.",
        ),
    ] = field(default=10_000, name="request.max.elements")
    request_memory_bytes: Annotated[
        int,
        Meta(ge=MIB, description="Bytes of requests in progress of every API but Produce; above this, others wait."),
    ] = field(default=64 * MIB, name="request.memory.bytes")
    reply_memory_bytes: Annotated[
        int,
        Meta(ge=MIB, description="Bytes of replies that clients have not read; above this, further large ones wait."),
    ] = field(default=64 * MIB, name="reply.memory.bytes")

    # -- groups and fetch sessions
    group_memory_bytes: Annotated[
        int,
        Meta(
            ge=MIB, description="Memory of the groups of one agent; beyond it GROUP_MAX_SIZE_REACHED for new members."
        ),
    ] = field(default=64 * MIB, name="group.memory.bytes")
    group_member_max_bytes: Annotated[
        int, Meta(ge=4_096, description="Subscription of one member of a group; beyond it INVALID_REQUEST.")
    ] = field(default=MIB, name="group.member.max.bytes")
    fetch_session_max_partitions: Annotated[
        PositiveInt,
        Meta(description="Partitions in all fetch sessions of one agent; beyond it clients fetch without sessions."),
    ] = field(default=200_000, name="fetch.session.max.partitions")
