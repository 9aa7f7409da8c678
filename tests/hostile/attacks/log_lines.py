"""Names with line breaks, terminal escapes and false log lines, in every place of a request that is logged."""

from __future__ import annotations

import struct

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.attacks.large_members import join
from tests.hostile.frames import METADATA, ask, request, text

SETTINGS = {"log.level": "info"}
FORGED = "g\n2026-01-01 00:00:00 CRITICAL headrace forged=yes \x1b[2J\r\u2028"


async def attack(target: AttackedAgent) -> str:
    """Groups, topics and garbage; then look at the log."""
    for number in range(50):
        await ask(*target.kafka, join(FORGED + str(number), 10), 10.0)
        await ask(*target.kafka, request(METADATA, 1, struct.pack(">i", 1) + text(FORGED)), 10.0)
        await ask(*target.kafka, request(METADATA, 1, FORGED.encode()), 10.0)
    log = target.log.read_text(errors="replace")
    forged = sum(line.startswith("2026-01-01 00:00:00 CRITICAL") for line in log.split("\n"))
    return f"{forged} forged lines, {log.count(chr(27))} escapes in {len(log.splitlines())} lines"
