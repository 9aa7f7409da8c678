"""The most elements that a request may have, for every API that takes an array: what the worst one costs the loop."""

from __future__ import annotations

import struct
import time

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import ask, request, text

COUNT = 9_990


def _array(element: bytes) -> bytes:
    return struct.pack(">i", COUNT) + element * COUNT


def requests() -> dict[str, bytes]:
    """Return the requests by name; each has COUNT elements."""
    names = struct.pack(">i", COUNT) + b"".join(text(f"{n:06}") for n in range(COUNT))
    creations = b"".join(text(f"{n:06}") + struct.pack(">ihii", 1, 1, 0, 0) for n in range(COUNT // 3))
    return {
        "Metadata": request(3, 8, names + bytes(3)),
        "DescribeGroups": request(15, 0, names),
        "DeleteGroups": request(42, 0, names),
        "DeleteTopics": request(20, 1, names + bytes(4)),
        "CreateTopics": request(19, 2, struct.pack(">i", COUNT // 3) + creations + bytes(4) + b"\1"),
        "Fetch": request(
            1,
            4,
            struct.pack(">iiiib", -1, 0, 1, 1 << 20, 0) + struct.pack(">i", 1) + text("bystanders")
            + struct.pack(">i", COUNT) + b"".join(struct.pack(">iqi", n, 0, 1 << 20) for n in range(COUNT)),
        ),
        "Produce": request(
            0,
            7,
            struct.pack(">hhii", -1, -1, 1000, 1) + text("bystanders") + struct.pack(">i", COUNT)
            + b"".join(struct.pack(">ii", n, 0) for n in range(COUNT)),
        ),
        "ListOffsets": request(
            2,
            1,
            struct.pack(">ii", -1, 1) + text("bystanders") + struct.pack(">i", COUNT)
            + b"".join(struct.pack(">iq", n % 3, -1) for n in range(COUNT)),
        ),
        "OffsetCommit": request(
            8,
            2,
            text("g") + struct.pack(">i", -1) + text("") + struct.pack(">qi", -1, 1) + text("bystanders")
            + struct.pack(">i", COUNT) + b"".join(struct.pack(">iqh", n, 1, 0) for n in range(COUNT)),
        ),
        "OffsetFetch": request(
            9,
            1,
            text("g") + struct.pack(">i", 1) + text("bystanders") + struct.pack(">i", COUNT)
            + b"".join(struct.pack(">i", n) for n in range(COUNT)),
        ),
        "DescribeConfigs": request(
            32, 1, struct.pack(">i", COUNT) + (b"\2" + text("bystanders") + struct.pack(">i", -1)) * COUNT + bytes(1)
        ),
        "DeleteRecords": request(
            21,
            0,
            struct.pack(">i", 1) + text("bystanders") + struct.pack(">i", COUNT)
            + b"".join(struct.pack(">iq", n, 0) for n in range(COUNT)) + struct.pack(">i", 1000),
        ),
        "CreatePartitions": request(
            37,
            0,
            struct.pack(">i", COUNT) + b"".join(text(f"{n:06}") + struct.pack(">ii", 3, -1) for n in range(COUNT))
            + struct.pack(">ib", 1000, 1),
        ),
        "OffsetForLeaderEpoch": request(
            23,
            2,
            struct.pack(">i", 1) + text("bystanders") + struct.pack(">i", COUNT)
            + b"".join(struct.pack(">iii", 0, -1, 0) for n in range(COUNT)),
        ),
        "LeaveGroup": request(13, 3, text("g") + _array(text("m") + b"\xff\xff")),
    }  # fmt: skip


async def attack(target: AttackedAgent) -> str:
    """One request after another; the slowest answers."""
    seconds: dict[str, float] = {}
    for name, frame in requests().items():
        began = time.monotonic()
        answer = await ask(*target.kafka, frame, 60.0)
        seconds[name if answer else f"{name} (closed)"] = time.monotonic() - began
    return ", ".join(f"{name} {took * 1000:.0f} ms" for name, took in sorted(seconds.items(), key=lambda s: -s[1]))
