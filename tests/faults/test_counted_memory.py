"""What clients make an agent remember is counted: fields of 1 MB grow its memory by what its metrics say.

The everyday run sends the names that agents key something by; the slow one each text and byte field of each API.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from headrace.config.settings import STANDARD_AUTHORIZER
from tests.agent_process import AgentUnderTest, format_storage
from tests.hostile.attacks.grown_fields import APART_MAX_BYTES, FIELD_BYTES, TIMES, Growth, send_grown
from tests.hostile.grown_requests import GrownField, grown_fields
from tests.hostile.metrics_page import memory_in_use, read_page

pytestmark = pytest.mark.requirement("X2", "X7")
MIB = 1024 * 1024
EVERYDAY = {
    "FindCoordinator": 1,
    "Metadata": 1,
    "Fetch": 2,
    "OffsetCommit": 4,
    "JoinGroup": 7,
    "ConsumerGroupHeartbeat": 7,
    "InitProducerId": 1,
}
"""How many fields each of these APIs has."""
EVERYDAY_TIMES = 12
EVERYDAY_APART_MAX_BYTES = 8 * MIB
"""Less than 12 values of one field that is kept and not counted."""
PARTS = 4
"""So that none takes 20 minutes on a busy machine."""
DENIES = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:nobody"}


def grown(agent: AgentUnderTest, fields: list[GrownField], times: int) -> Growth:
    """Return the growth of memory by requests after the first ones, which load code and fill what the C library
    keeps.
    """
    host, _, port = agent.kafka.rpartition(":")
    address = host, int(port)

    def look() -> tuple[int, float]:
        pages = Path(f"/proc/{agent.process_id}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGESIZE"), sum(memory_in_use(read_page(agent.http)).values())

    asyncio.run(send_grown(address, fields, range(2), FIELD_BYTES))
    before = look()
    answered, closed = asyncio.run(send_grown(address, fields, range(2, times + 2), FIELD_BYTES))
    after = look()
    return Growth(after[0] - before[0], after[1] - before[1], answered, closed)


def settings_of(metastore_url: str, folder: Path, **more: object) -> dict[str, object]:
    stored: dict[str, object] = {"metastore.url": metastore_url, "bucket": folder.as_uri()}
    format_storage(stored)
    return stored | {"log.level": "warning", "group.initial.rebalance.delay.ms": 0, "node.id": 7_001} | more


@pytest.mark.parametrize("acls", [{}, DENIES], ids=["no ACLs", "all denied"])
def test_names_that_agents_key_something_by(acls: dict[str, object], metastore_url: str, tmp_path: Path) -> None:
    fields = [field for field in grown_fields() if field.api_name in EVERYDAY]
    assert len(fields) == sum(EVERYDAY.values())
    with AgentUnderTest(settings_of(metastore_url, tmp_path) | acls) as agent:
        growth = grown(agent, fields, EVERYDAY_TIMES)
    assert growth.answered > 0.9 * EVERYDAY_TIMES * len(fields), growth
    assert growth.apart_bytes < EVERYDAY_APART_MAX_BYTES, growth


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("acls", [{}, DENIES], ids=["no ACLs", "all denied"])
def test_every_field_of_every_api(part: int, acls: dict[str, object], metastore_url: str, tmp_path: Path) -> None:
    with AgentUnderTest(settings_of(metastore_url, tmp_path) | acls) as agent:
        growth = grown(agent, grown_fields()[part::PARTS], TIMES)
    assert growth.apart_bytes < APART_MAX_BYTES, growth
