"""Partition reassignment: which agents are preferred for a partition (KIP-455, for stateless agents).

Place: behind AlterPartitionReassignments and ListPartitionReassignments, and in the active controller,
which completes reassignments. Pure: from an image to the records to append at its offset.
Invariant: all of a reassignment's state is in the log, so it survives every failover and ends with
its topic. An agent holds no data, so it is in sync as soon as it is registered and live; an added one
becomes preferred only then. A list of what clients behind one address see moves nothing (shown_counts.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

from headrace.config.bounds import VIRTUAL_NODE_ID
from headrace.metastore.log.image import Assignment, MetadataImage, TopicImage
from headrace.metastore.log.kip631_records import PartitionChangeRecord
from headrace.metastore.log.shown_counts import is_agent, resized
from headrace.storage.errors import InvalidError, NotFoundError


def reassign(
    image: MetadataImage, topic_id: uuid.UUID, index: int, target: Sequence[int], *, shows_virtual: bool = False
) -> PartitionChangeRecord:
    """Prefer the agents of `target`, best first; one that is under way is replaced.

    It is complete at once when no agent is added. NotFoundError for an unknown partition, InvalidError for a target
    without an agent, one that names an agent twice or an agent that is not registered (fenced is fine). Replicas of the
    object store, which Metadata shows to clients, may be in it and are complete at once.
    With `shows_virtual` the client sees one virtual node instead of the agents: a target of this node and of replicas
    of the object store states their number, and moves nothing.
    """
    topic = _topic(image, topic_id, index)
    wanted = tuple(target)
    agents = [node_id for node_id in wanted if is_agent(node_id) or node_id == VIRTUAL_NODE_ID]
    if not agents or len(set(wanted)) != len(wanted):
        raise InvalidError(f"preferred agents must be distinct and at least one: topic={topic.name} target={wanted}")
    if shows_virtual and agents == [VIRTUAL_NODE_ID]:
        return _change(topic_id, index, Assignment(resized(topic, index, len(wanted))))
    unknown = [node_id for node_id in agents if node_id not in image.agents]
    if unknown:
        raise InvalidError(f"agents are not registered: topic={topic.name} node_ids={unknown}")
    current = topic.assignment(index).preferred
    adding = tuple(node_id for node_id in agents if node_id not in current)
    removing = tuple(node_id for node_id in current if node_id not in wanted) if adding else ()
    return _change(topic_id, index, Assignment(wanted + removing, adding, removing))


def cancel_reassignment(image: MetadataImage, topic_id: uuid.UUID, index: int) -> PartitionChangeRecord | None:
    """Back to the agents that are preferred now; None when no reassignment is under way.

    NotFoundError for an unknown partition.
    """
    assignment = _topic(image, topic_id, index).assignment(index)
    return _change(topic_id, index, Assignment(assignment.preferred)) if assignment.under_way else None


def reassignments(image: MetadataImage) -> Iterator[tuple[TopicImage, int, Assignment]]:
    """Every partition with a reassignment in progress. Looks at assigned partitions only."""
    for topic in image.topics_by_id.values():
        for index, assignment in topic.assignments.items():
            if assignment.under_way:
                yield topic, index, assignment


def completions(image: MetadataImage) -> list[PartitionChangeRecord]:
    """Return what can be completed now: every added agent is live."""
    live = {agent.node_id for agent in image.live_agents()}
    return [
        _change(topic.topic_id, index, Assignment(assignment.target))
        for topic, index, assignment in reassignments(image)
        if live.issuperset(assignment.adding)
    ]


def _topic(image: MetadataImage, topic_id: uuid.UUID, index: int) -> TopicImage:
    topic = image.topics_by_id.get(topic_id)
    if topic is None or topic.key(index) is None:
        raise NotFoundError(f"unknown partition: topic_id={topic_id} partition={index}")
    return topic


def _change(topic_id: uuid.UUID, index: int, assignment: Assignment) -> PartitionChangeRecord:
    return PartitionChangeRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=assignment.replicas,
        adding_replicas=assignment.adding,
        removing_replicas=assignment.removing,
    )
