"""Names of 7.5 MB that no resource has, with ACLs: each is a decision that the agent could keep. 60 requests."""

from __future__ import annotations

import struct
from collections import Counter

from headrace.config.settings import STANDARD_AUTHORIZER
from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.typed_frames import Asking, frame

SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
"""Settings with which ordinary clients are served; what a decision says does not matter here."""
_FIND_COORDINATOR, _VERSION = 10, 4
NAME_BYTES = 7_500_000


def request_of(number: int, size: int = NAME_BYTES) -> bytes:
    """A look-up of the coordinator of another group each time."""
    key = f"{number:06d}".ljust(size, "x")
    return frame(_FIND_COORDINATOR, _VERSION, key_type=0, coordinator_keys=(key,))


async def attack(target: AttackedAgent) -> str:
    """One after another."""
    answers: Counter[str] = Counter()
    async with Asking(*target.kafka) as connection:
        for number in range(60):
            answer = await connection.ask(request_of(number))
            answers["answered" if len(answer) > struct.calcsize(">i") else "closed"] += 1
    return f"60 names of 7.5 MB: {dict(answers)}"
