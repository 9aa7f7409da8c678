"""Every API that an agent or a controller serves, but those that come before a principal is known.

Place: agent/serve registers them. A new API is a row in protocol/api_versions.py, and a row in a module next to this.
"""

from __future__ import annotations

from typing import Never

from headrace.agent.apis.api_row import ApiRow
from headrace.agent.apis.cluster import ACCESS_ROWS, CLUSTER_ROWS, METADATA_ROWS
from headrace.agent.apis.groups import GROUP_ROWS, SHARE_GROUP_ROWS, SHARE_RECORD_ROWS, STREAMS_GROUP_ROWS
from headrace.agent.apis.links import LINK_ROWS
from headrace.agent.apis.offsets import OFFSET_ROWS
from headrace.agent.apis.parts import BrokerParts, GroupParts
from headrace.agent.apis.records import RECORD_ROWS, TRANSACTION_ROWS
from headrace.agent.apis.topics import CONFIG_ROWS, COUNT_ROWS, TOPIC_ROWS

BROKER_ROWS: dict[int, ApiRow[BrokerParts]] = {
    **RECORD_ROWS,
    **SHARE_RECORD_ROWS,
    **METADATA_ROWS,
    **TOPIC_ROWS,
    **COUNT_ROWS,
    **TRANSACTION_ROWS,
    **CONFIG_ROWS,
    **ACCESS_ROWS,
    **CLUSTER_ROWS,
    **LINK_ROWS,
}
"""What any agent answers by itself."""
COORDINATOR_ROWS: dict[int, ApiRow[GroupParts]] = {
    **GROUP_ROWS,
    **OFFSET_ROWS,
    **SHARE_GROUP_ROWS,
    **STREAMS_GROUP_ROWS,
}
"""Every API about groups: the coordinator answers, or all agents."""
ROWS: dict[int, ApiRow[Never]] = {**BROKER_ROWS, **COORDINATOR_ROWS}
"""Every API of a broker's listeners, for those who do not make handlers."""
