"""Judges what a link may do here: by the rights of its creator, the rules of names, and the cluster's limits.

Place: composed for the active controller (controller_role.py), which creates the copies (link_steps.py): the rules of
topics and rights are in folders above the controller's.
Invariant: a link does what its creator may do at that moment, from any address: CREATE and WRITE of the topic, DELETE
to delete the copy, READ of a group to copy its offsets, as OffsetCommit has it. Names and limits are those of every
other topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.cluster.controller.link_following import WantedCopy
from headrace.agent.topics.topic_rules import TopicDefaults, TopicRefusal, WantedTopic, judge
from headrace.metastore.log.image import MetadataImage

_NO_ADDRESS = ""
"""A link has no address: an ACL for one host does not allow it anything, and one for all hosts does."""


class LinkRights:
    """Judges by the authorizer of a process."""

    def __init__(self, authorizer: Authorizer, defaults: Callable[[], TopicDefaults]) -> None:
        self._authorizer, self._defaults = authorizer, defaults

    def why_not(self, image: MetadataImage, wanted: Sequence[WantedCopy]) -> list[str | None]:
        """Return for each topic why it is not created; None if it may be."""
        denied = [self._why_denied(each) for each in wanted]
        allowed = [each.topic for each, reason in zip(wanted, denied, strict=True) if reason is None]
        asked = [
            WantedTopic(topic.name, topic.topic_id, topic.partition_count, configs=tuple(topic.configs.items()))
            for topic in allowed
        ]
        judged = iter(judge(asked, image, self._defaults()))
        return [reason if reason is not None else _reason(next(judged)) for reason in denied]

    def why_not_deleted(self, creator: str, topic: str) -> str | None:
        """Return None if the creator may delete the topic."""
        if self._authorizer.of(creator, _NO_ADDRESS).allows(AclOperation.DELETE, AclResource.TOPIC, topic):
            return None
        return f"{creator}, who set up the link, may not DELETE this topic"

    def why_no_offsets(self, creator: str, group_id: str) -> str | None:
        """Return None if the creator may commit offsets of the group."""
        if self._authorizer.of(creator, _NO_ADDRESS).allows(AclOperation.READ, AclResource.GROUP, group_id):
            return None
        return f"{creator}, who set up the link, may not READ this group"

    def _why_denied(self, wanted: WantedCopy) -> str | None:
        access = self._authorizer.of(wanted.creator, _NO_ADDRESS)
        topic = wanted.topic.name
        may_create = access.allows(AclOperation.CREATE, AclResource.CLUSTER)
        if not may_create and not access.allows(AclOperation.CREATE, AclResource.TOPIC, topic):
            return f"{wanted.creator}, who set up the link, may not CREATE this topic"
        if not access.allows(AclOperation.WRITE, AclResource.TOPIC, topic):
            return f"{wanted.creator}, who set up the link, may not WRITE to this topic"
        return None


def _reason(judged: object) -> str | None:
    return judged.message if isinstance(judged, TopicRefusal) else None
