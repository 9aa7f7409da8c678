"""Asks the owner of a share group: the part of this agent that holds groups, or another agent over its link.

Place: between agent/fetch/share/handlers.py and agent/groups/share/owner.py.
Invariant: a turn is sent once. If its answer is lost, it is not known what became of it, and no answer says that it was
done. When the client's connection ends, the link says so, and the owner releases what the client had acquired.
"""

from __future__ import annotations

import logging

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.share.owner import ShareOwner
from headrace.agent.peers.channel import SHARE_TURN_KEY
from headrace.agent.peers.forwarding.links import Links
from headrace.agent.peers.forwarding.wire import ForwardOutcome
from headrace.agent.peers.share_turns import VERSION, ShareTurn, TurnAnswer, decode_answer, encode
from headrace.protocol.request import ClientConnection, Request
from headrace.storage.errors import InvalidError

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
