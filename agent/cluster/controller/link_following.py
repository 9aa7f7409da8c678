"""What of a source follows besides records: configs, deletions by choice, and which groups may. Pure.

Place: under link_steps.py, which carries it out and passes the newest image.
Invariant: a config is changed only where the source's changed since it was last set here: what was set here meanwhile
stays. A copy is deleted only if its link says so (`link.delete.topics`), its creator may, and its promotion
was not asked for.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.config import topic_configs
from headrace.config.link_configs import CREATOR, DELETES, LINK_NAME, SHARE, is_paused, value_of
from headrace.config.table_configs import TABLE_PREFIX
from headrace.metastore.api.linked_groups import NO_OFFSETS, LinkedGroup
from headrace.metastore.api.links import GONE, FoundTopic, LinkedTopic, Promotion
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import TOPIC_RESOURCE, ConfigRecord

CONFIGS_PER_LOOK = 200
DELETED_PER_LOOK = 20
OTHER_SOURCE = "the topic was deleted and created again at the source: drop the copy to copy it again, or promote it"


class WantedCopy(NamedTuple):
    """A copy to be created, and the principal with the rights that it needs."""

    creator: str
    topic: NewTopic


class LinkJudge(Protocol):
    """Judges by the rights of a link's creator, the rules of names, and limits; None: it may be."""

    def why_not(self, image: MetadataImage, wanted: Sequence[WantedCopy]) -> Sequence[str | None]:
        """Return why each topic is not created."""

    def why_not_deleted(self, creator: str, topic: str) -> str | None:
        """Return why a copy is not deleted."""

    def why_no_offsets(self, creator: str, group_id: str) -> str | None:
        """Return why a group's offsets are not copied."""


class DueConfigs(NamedTuple):
    """`noted`: what is set here then, by topic id."""

    records: list[ConfigRecord]
    noted: dict[uuid.UUID, Mapping[str, str]]


def wanted_configs(image: MetadataImage, found: FoundTopic) -> dict[str, str]:
    """Return the source's configs of a topic that a topic of this cluster can have."""
    configs = {
        name: value
        for name, value in found.configs.items()
        if name != LINK_NAME and not name.startswith(TABLE_PREFIX) and topic_configs.why_invalid(name, value) is None
    }
    if topic_configs.why_not_with(
        configs, has_topic_tables=image.has_topic_tables, has_low_latency=image.has_low_latency
    ):
        configs.pop(topic_configs.LOW_LATENCY_ENABLE, None)
    return configs


def due_configs(image: MetadataImage, found: Sequence[FoundTopic], linked: Sequence[LinkedTopic]) -> DueConfigs:
    """Return what changed at sources since configs were last set here."""
    copies, due = {(topic.link, topic.name): topic for topic in linked}, DueConfigs([], {})
    for each in found:
        copy = copies.get((each.link, each.name))
        if copy is None or each.problem or each.source_id != copy.source_id or len(due.records) >= CONFIGS_PER_LOOK:
            continue
        wanted, known = wanted_configs(image, each), copy.configs or {}
        if wanted == copy.configs or image.link_of(each.name) != each.link:
            continue
        changed: dict[str, str | None] = {name: value for name, value in wanted.items() if known.get(name) != value}
        changed |= dict.fromkeys(known.keys() - wanted.keys())
        own = image.configs.get((TOPIC_RESOURCE, each.name), {})
        due.records.extend(
            ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=each.name, name=name, value=value)
            for name, value in sorted(changed.items())
            if own.get(name) != value
        )
        due.noted[copy.topic_id] = wanted
    return due


def due_deletions(
    image: MetadataImage, found: Sequence[FoundTopic], linked: Sequence[LinkedTopic], judge: LinkJudge
) -> list[LinkedTopic]:
    """Return the copies of topics that their sources deleted, perhaps to create them again."""
    deleting = {
        name: value_of(configs, CREATOR)
        for name, configs in image.links.items()
        if value_of(configs, DELETES) == "true" and not is_paused(configs)
    }
    copies, due = {(topic.link, topic.name): topic for topic in linked}, list[LinkedTopic]()
    for each in found if deleting else ():
        copy = copies.get((each.link, each.name))
        if copy is None or each.link not in deleting or copy.promotion is not Promotion.NONE:
            continue
        is_gone = each.problem == GONE or (each.source_id != copy.source_id and each.problem in ("", OTHER_SOURCE))
        is_copy = copy.topic_id in image.topics_by_id and image.link_of(each.name) == each.link
        if is_gone and is_copy and judge.why_not_deleted(deleting[each.link], each.name) is None:
            due.append(copy)
    return due[:DELETED_PER_LOOK]


def judged_groups(image: MetadataImage, groups: Sequence[LinkedGroup], judge: LinkJudge) -> list[tuple[str, str, str]]:
    """Return link, group id and refusal of the groups that are judged otherwise than before; empty: they are copied."""
    creators = {name: value_of(configs, CREATOR) for name, configs in image.links.items()}
    judged = [
        (group, NO_OFFSETS if group.kind == SHARE else judge.why_no_offsets(creators[group.link], group.group_id) or "")
        for group in groups
        if group.link in creators
    ]
    return [(group.link, group.group_id, refusal) for group, refusal in judged if refusal != group.refusal]
