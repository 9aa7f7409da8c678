"""Says which agent serves a request about groups or about agents, where clients see all agents as one.

Place: in the rows of agent/apis; forwarding.py follows it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_BROKER, _BROKER_LOGGER = 4, 8
"""ConfigResource types that name an agent."""


class Whole(enum.Enum):
    """Routes of requests that are not taken apart."""

    GROUP_IN_FIRST_FIELD = "the coordinator of the group that the first field names"
    GROUP_ID = "the coordinator of the group in the field group_id"
    EVERY_AGENT = "every agent answers, and the groups of all answers are one list"


def _itself(element: Any) -> str | None:
    return str(element)


def _nothing(element: Any) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Elements:
    """Paths of the elements in a request and in its answer; which group or agent an element
    names.
    """

    asked: str
    answered: str
    group_of: Callable[[Any], str | None] = _itself
    node_of: Callable[[Any], int | None] = _nothing
    first_version: int = 0
    """Requests of versions before it have one group in their first field."""


Route = Whole | Elements


def of_brokers(answered: str) -> Elements:
    """Config resources: those of one agent go to it."""
    return Elements("resources", answered, _nothing, _broker)


def _broker(element: Any) -> int | None:
    """The node id in a config resource."""
    name = element.resource_name
    if element.resource_type not in (_BROKER, _BROKER_LOGGER) or not (name.isascii() and name.isdecimal()):
        return None
    return int(name[:20])
