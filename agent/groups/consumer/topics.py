"""What members' subscriptions mean on the cluster's topics: names, and patterns in RE2's syntax.

Place: asked by group.py, which judges a group by one picture of the topics at a time.
Patterns come from clients. RE2 matches in time linear in the name whatever the pattern is, and a
pattern's program is bounded (`PROGRAM_BYTES`), so neither can be used to stop the agent; Kafka uses
the same syntax. Matches are kept per pattern until topics come or go, and are made on a thread.
Invariant: a `Topics` is immutable; two of them have the same `by_name` only if no topic, and no
topic's partition count, changed between them.
If the process dies here nothing is lost: no state.
Source: KIP-848 (SubscribedTopicRegex).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import re2

from agent.cluster.view import ClusterView
from metastore.log.image import TopicImage

PROGRAM_BYTES = 256 * 1024
"""Memory that one pattern's program and its automaton may take."""


@dataclass(frozen=True, slots=True)
class Topics:
    """The cluster's topics as of one image, as far as a group needs them."""

    by_name: Mapping[str, TopicImage]
    by_number: Mapping[int, TopicImage]
    matches: Mapping[str, frozenset[int]]
    """Topic pattern -> numbers of the topics whose whole name it matches."""

    def of(self, names: Iterable[str], pattern: str) -> frozenset[int]:
        """The topics that a subscription means; what is not there (yet) is left out."""
        named = frozenset(self.by_name[name].topic_number for name in names if name in self.by_name)
        return named | self.matches[pattern] if pattern else named

    def counts(self, numbers: Iterable[int]) -> dict[int, int]:
        """Topic number -> partitions."""
        return {number: len(self.by_number[number].leader_epochs) for number in numbers}


class TopicPatterns:
    """The topics of the newest image, with what patterns match there."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._by_name: Mapping[str, TopicImage] = {}
        self._matches: dict[str, frozenset[int]] = {}

    async def prepare(self, patterns: Iterable[str]) -> None:
        """Match them on a thread, so that `topics` has nothing left to do."""
        by_name = self._newest()
        for pattern in set(patterns) - self._matches.keys() - {""}:
            found = await asyncio.to_thread(_matches, pattern, by_name)
            if self._newest() is not by_name:
                return  # topics came or went meanwhile: `topics` sees to what is still missing
            self._matches[pattern] = found

    def topics(self, patterns: Iterable[str]) -> Topics:
        """The newest picture, with the matches of these patterns."""
        by_name = self._newest()
        for pattern in set(patterns) - self._matches.keys() - {""}:
            self._matches[pattern] = _matches(pattern, by_name)
        return Topics(by_name, self._cluster.image.topics_by_number, self._matches)

    def _newest(self) -> Mapping[str, TopicImage]:
        by_name = self._cluster.image.topics_by_name
        if by_name is not self._by_name:
            self._by_name, self._matches = by_name, {}
        return by_name


def is_valid(pattern: str) -> bool:
    """Whether it is RE2 syntax, and small enough."""
    try:
        _compile(pattern)
    except re2.error:
        return False
    return True


def _matches(pattern: str, by_name: Mapping[str, TopicImage]) -> frozenset[int]:
    compiled = _compile(pattern)
    return frozenset(topic.topic_number for name, topic in by_name.items() if compiled.fullmatch(name) is not None)


def _compile(pattern: str) -> re2._Regexp:
    options = re2.Options()
    options.max_mem = PROGRAM_BYTES
    options.log_errors = False
    return re2.compile(pattern, options)
