"""Every API that an agent or a controller serves, but those that come before a principal is known.

Place: agent/serve registers them. A new API is a row in protocol/api_versions.py, and a row in a module next to this.
"""

from __future__ import annotations

from typing import Never

from headrace.agent.apis.access import ACCESS_ROWS
from headrace.agent.apis.api_row import ApiRow
from headrace.agent.apis.cluster import CLUSTER_ROWS
from headrace.agent.apis.configs import CONFIG_ROWS
from headrace.agent.apis.group_parts import GroupParts
from headrace.agent.apis.groups import GROUP_ROWS
from headrace.agent.apis.metadata import METADATA_ROWS
from headrace.agent.apis.offsets import OFFSET_ROWS
from headrace.agent.apis.partition_counts import COUNT_ROWS
from headrace.agent.apis.parts import BrokerParts
from headrace.agent.apis.records import RECORD_ROWS
from headrace.agent.apis.share_groups import SHARE_GROUP_ROWS, SHARE_RECORD_ROWS
from headrace.agent.apis.topics import TOPIC_ROWS
from headrace.agent.apis.transactions import TRANSACTION_ROWS

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
}
"""What any agent answers by itself."""
COORDINATOR_ROWS: dict[int, ApiRow[GroupParts]] = {**GROUP_ROWS, **OFFSET_ROWS, **SHARE_GROUP_ROWS}
"""Every API about groups: the coordinator answers, or all agents."""
ROWS: dict[int, ApiRow[Never]] = {**BROKER_ROWS, **COORDINATOR_ROWS}
"""Every API of a broker's listeners, for those who do not make handlers."""
