"""Kafka's rules for topic names. Pure.

Place: before a topic is created, on request or automatically.
"""

from __future__ import annotations

import re

from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.protocol.internal_topics import INTERNAL_TOPICS

NAME_LENGTH_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def why_illegal(name: str) -> str | None:
    """Return None for a legal name, else the reason."""
    if not name:
        return "the topic name is empty"
    if name in (".", ".."):
        return "the topic name cannot be '.' or '..'"
    if len(name) > NAME_LENGTH_MAX:
        return f"the topic name is longer than {NAME_LENGTH_MAX} characters"
    if rendered_topic(name) is not None:
        return "the topic is reserved for the cluster"
    if name in INTERNAL_TOPICS:
        return f"the topic is internal to Kafka, and Headrace does not have it: {INTERNAL_TOPICS[name]}"
    if not _LEGAL.fullmatch(name):
        return "the topic name has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None
