"""What each API needs, by its key: `RULES`. An API without an entry cannot be registered (gate.py).

Source: Kafka 4.1, KafkaApis and ControllerApis.
"""

from __future__ import annotations

from headrace.agent.security.authorization.rules.cluster import CLUSTER_RULES
from headrace.agent.security.authorization.rules.configs import CONFIG_RULES
from headrace.agent.security.authorization.rules.groups import GROUP_RULES
from headrace.agent.security.authorization.rules.offsets import OFFSET_RULES
from headrace.agent.security.authorization.rules.own_requests import OWN_RULES
from headrace.agent.security.authorization.rules.rule import Rule
from headrace.agent.security.authorization.rules.topics import TOPIC_RULES
from headrace.agent.security.authorization.rules.transactions import TRANSACTION_RULES

RULES: dict[int, Rule] = {
    **TOPIC_RULES,
    **GROUP_RULES,
    **OFFSET_RULES,
    **TRANSACTION_RULES,
    **CONFIG_RULES,
    **CLUSTER_RULES,
    **OWN_RULES,
}
