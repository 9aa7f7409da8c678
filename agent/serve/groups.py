"""The groups of an agent, composed: what it holds, what answers requests about them, what asks owners elsewhere.

Place: called by agent/serve/paths.py; agent/apis makes the handlers of it. A new kind of group adds its Restore
here. AskShareOwner is between agent/fetch/share/handlers.py and agent/groups/share/owner.py: it asks the owner of a
share group here, or at another agent over its link.
Invariant: a turn of a share group is sent once. If its answer is lost, it is not known what became of it, and
no answer says that it was done. When the client's connection ends, the link says so, and the owner releases what the
client had acquired.
"""

from __future__ import annotations

import logging
from functools import partial

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.apis.parts import GroupParts
from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.administration import GroupAdministration
from headrace.agent.groups.claims import NewGroups
from headrace.agent.groups.classic.coordinator import ClassicCoordinator
from headrace.agent.groups.classic.group import ClassicGroup
from headrace.agent.groups.classic.saved import decode
from headrace.agent.groups.consumer.coordinator import ConsumerGroups, late_groups
from headrace.agent.groups.consumer.rules import ConsumerGroupRules
from headrace.agent.groups.coordinated import CoordinatedGroup
from headrace.agent.groups.group_memory import GroupMemory
from headrace.agent.groups.group_values import GroupEffect
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.last_offsets import AskLastOffsets
from headrace.agent.groups.metrics import GroupMetrics
from headrace.agent.groups.offsets.group_offsets import GroupOffsets
from headrace.agent.groups.positions import ConsumerGroupPosition
from headrace.agent.groups.share.answered import AnsweredShares
from headrace.agent.groups.share.coordinator import ShareGroups
from headrace.agent.groups.share.group_partitions import ShareLogs
from headrace.agent.groups.share.metrics import ShareMetrics
from headrace.agent.groups.share.offsets import ShareOffsets
from headrace.agent.groups.share.owner import ShareOwner
from headrace.agent.groups.share.rules import ShareGroupRules
from headrace.agent.groups.share.share_memory import ShareMemory
from headrace.agent.groups.streams.coordinator import StreamsGroups
from headrace.agent.groups.streams.internal_topics import InternalTopics
from headrace.agent.groups.streams.rules import StreamsGroupRules
from headrace.agent.limits.client_rows import RowLimits
from headrace.agent.limits.metrics import limits_reached
from headrace.agent.peers.channel import SHARE_TURN_KEY
from headrace.agent.peers.forwarding.links import Links
from headrace.agent.peers.forwarding.wire import ForwardOutcome
from headrace.agent.peers.share_turns import VERSION, ShareTurn, TurnAnswer, decode_answer, encode
from headrace.metastore.api.groups import GroupKind, GroupRecord
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.metastore.process_context import ProcessContext
from headrace.protocol.request import ClientConnection, Request
from headrace.storage.errors import InvalidError


def compose_groups(
    context: ProcessContext,
    cluster: ClusterView,
    *,
    authorizer: Authorizer | None = None,
    rows: RowLimits | None = None,
    logs: ShareLogs | None = None,
) -> GroupParts:
    """`authorizer`: None if ACLs are not enforced. `rows`: limits on stored offsets and groups; None: there are none.
    `logs`: what share groups read; None: they get no turn."""
    api, settings, clock, rng, registry = (
        context.metastore,
        context.settings,
        context.clock,
        context.rng,
        context.registry,
    )
    in_force = SettingsInForce(settings, lambda: cluster.image)

    def restore_classic(
        group_id: str, now: float, record: GroupRecord | None
    ) -> tuple[CoordinatedGroup, list[GroupEffect]]:
        now_set = in_force.current()
        delay = now_set.group_initial_rebalance_delay_ms / 1000
        group = ClassicGroup(group_id, rng, initial_rebalance_delay=delay, max_size=now_set.group_max_size)
        return group, [] if record is None else group.restore(now, decode(record.data))

    consumer_rules = ConsumerGroupRules(settings, lambda: cluster.image)
    consumer_groups = ConsumerGroups(api.groups, cluster, clock, consumer_rules, rng, authorizer)
    share_rules = ShareGroupRules(settings, lambda: cluster.image)
    share_metrics = ShareMetrics(registry)
    share_groups = ShareGroups(api.groups, cluster, clock, share_rules, share_metrics.rebalances.inc)
    metrics = GroupMetrics(registry)
    streams_rules = StreamsGroupRules(settings, lambda: cluster.image)
    streams_groups = StreamsGroups(api.groups, cluster, clock, streams_rules, metrics.streams_rebalances.inc)
    restore = {
        None: restore_classic,
        GroupKind.CLASSIC: restore_classic,
        GroupKind.CONSUMER: consumer_groups.restore,
        GroupKind.SHARE: share_groups.restore,
        GroupKind.STREAMS: streams_groups.restore,
    }
    memory = GroupMemory(settings.group_memory_bytes, settings.group_member_max_bytes, limits_reached(registry))
    last_offsets = AskLastOffsets(api.linked_groups, cluster, clock, registry)
    new_groups = NewGroups(api.groups, rows, last_offsets)
    groups = HeldGroups(new_groups, cluster, clock, restore, metrics, memory, context.supervisor)
    metrics.watch_late(lambda: late_groups(groups, clock.monotonic(), in_force.current().group_late_parent_ms))
    administration = GroupAdministration(api.groups, groups)
    answered = AnsweredShares(context.store, lambda: cluster.node_id, clock)
    share_memory = ShareMemory(on_limit=lambda limit: limits_reached(registry).labels(limit).inc())
    share_owner = ShareOwner(groups, clock, share_rules, answered, share_metrics, share_memory, logs)
    return GroupParts(
        cluster=cluster,
        in_force=in_force,
        rng=rng,
        keeps_principals=authorizer is not None,
        groups=groups,
        memory=memory,
        coordinator=ClassicCoordinator(groups, clock, restore_classic),
        administration=administration,
        offsets=GroupOffsets(api, groups, clock, metrics, rows),
        position=ConsumerGroupPosition(groups, cluster, clock, lambda: consumer_groups.topics.topics().by_name),
        consumer_groups=consumer_groups,
        share_groups=share_groups,
        share_rules=share_rules,
        share_owner=share_owner,
        streams_groups=streams_groups,
        internal_topics=InternalTopics(clock, authorizer),
        share_offsets=ShareOffsets(api.groups, administration, share_owner, partial(share_groups.create, groups)),
    )


logger = logging.getLogger(__name__)


class AskShareOwner:
    """Implements agent.fetch.share.handlers.AskOwner."""

    def __init__(self, view: ClusterView, links: Links, owner: ShareOwner) -> None:
        self._view, self._links, self._owner = view, links, owner

    async def __call__(self, turn: ShareTurn, client: ClientConnection, received_at: float) -> TurnAnswer | None:
        """None: it is not known what became of the turn."""
        agent = self._view.coordinator(turn.group_id)
        if agent is None:
            return None
        if agent.node_id == self._view.node_id:
            return await self._owner.turn(turn, client)
        request = Request(client, SHARE_TURN_KEY, VERSION, 0, None, memoryview(encode(turn)), received_at)
        outcome, rest = await self._links.forward(agent, request)
        if outcome is not ForwardOutcome.ANSWERED:
            return None
        try:
            return decode_answer(rest)
        except InvalidError as error:
            logger.warning("share turn: answer not read: node_id=%d error=%s", agent.node_id, error)
            return None
