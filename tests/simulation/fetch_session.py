"""A consumer's side of an incremental fetch session (KIP-227), as Kafka's own client keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from tests.simulation.metadata import Place
from tests.simulation.protocol import Position

FULL_EPOCH = 0
NO_SESSION = -1
LOST = (int(ErrorCode.fetch_session_id_not_found), int(ErrorCode.invalid_fetch_session_epoch))


@dataclass(slots=True)
class Ask:
    """The contents of a Fetch request."""

    session_id: int
    epoch: int
    positions: dict[Place, Position]
    forgotten: list[Place]


@dataclass(slots=True)
class FetchSession:
    """`sent`: what the agent believes, if it heard all that was sent."""

    session_id: int = 0
    epoch: int = FULL_EPOCH
    sent: dict[Place, Position] = field(default_factory=dict)

    def ask(self, wanted: Mapping[Place, Position]) -> Ask:
        """Everything to begin with, later only what changed."""
        if self.epoch == FULL_EPOCH:
            self.sent = dict(wanted)
            return Ask(self.session_id, self.epoch, dict(wanted), [])
        changed = {place: position for place, position in wanted.items() if self.sent.get(place) != position}
        forgotten = [place for place in self.sent if place not in wanted]
        self.sent = dict(wanted)
        return Ask(self.session_id, self.epoch, changed, forgotten)

    def answered(self, error: int, session_id: int) -> None:
        """Continue, or start over."""
        if error in LOST or not session_id:
            self.session_id, self.epoch = 0, FULL_EPOCH
        else:
            self.session_id, self.epoch = session_id, self.epoch + 1

    def unanswered(self) -> None:
        """It is unknown what the agent received."""
        self.epoch = FULL_EPOCH


def without_session(wanted: Mapping[Place, Position]) -> Ask:
    """A full fetch that wants no session."""
    return Ask(0, NO_SESSION, dict(wanted), [])
