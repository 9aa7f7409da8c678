"""Decides on a request to change a link: the records to append, or the error. Pure decisions on one image.

Place: under links.py, which appends the records.
Invariant: a link is changed completely or not at all, and its configs are checked as a whole. Secrets are sealed
before they come here: what is in a record is what the log may have. The principal who set what a link copies, or from
where, is its creator: topics are created with that principal's rights.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import Verdict
from headrace.config.link_configs import (
    ACTIVE,
    CREATOR,
    FENCES,
    LINK_RESOURCE,
    LINKS_MAX,
    OWN,
    PAUSED,
    SECRETS,
    STATE,
    is_paused,
    value_of,
    why_invalid,
    why_no_name,
)
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.protocol.link_requests import LinkOp, LinkRequest

Values = Mapping[str, str | None]
"""The change: each config's new value as it is stored, None to remove it."""
Changes = list[ConfigRecord] | Verdict
NEEDS_FEATURE = "links need the feature level cluster.links=1: `headrace features upgrade --feature cluster.links=1`"
_HIDDEN = "x"
"""The value of a stored secret when a link is checked as a whole."""
_SHOWN_MAX = 10
"""Names in a message."""


def judge(image: MetadataImage, asked: LinkRequest, values: Values, principal: str) -> Changes:
    """The records for CREATE, ALTER, PAUSE and RESUME. `values`: the configs of the request, with sealed secrets."""
    match asked.op:
        case LinkOp.CREATE:
            return _created(image, asked, values, principal)
        case LinkOp.ALTER:
            return _altered(image, asked, values, principal)
        case LinkOp.PAUSE | LinkOp.RESUME:
            wanted = PAUSED if asked.op is LinkOp.PAUSE else ACTIVE
            return _known(image, asked.link) or set_configs(image, asked.link, {STATE: wanted})
        case _:
            return Verdict(ErrorCode.invalid_request, f"not a change of configs: {asked.op.value}")


def set_configs(image: MetadataImage, link: str, values: Values) -> list[ConfigRecord]:
    """The records for values that differ from the present ones."""
    own = image.configs.get((LINK_RESOURCE, link), {})
    return [_record(link, name, value) for name, value in values.items() if own.get(name) != value]


def removed(image: MetadataImage, link: str) -> list[ConfigRecord]:
    """The records that end a link; none if there is no such link."""
    return [_record(link, name, None) for name in image.configs.get((LINK_RESOURCE, link), {})]


class Copies(NamedTuple):
    """Linked topics that a request is about."""

    topics: tuple[TopicImage, ...]

    @property
    def ids(self) -> list[uuid.UUID]:
        """Their ids."""
        return [topic.topic_id for topic in self.topics]

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(topic.name for topic in self.topics)


def copies(image: MetadataImage, link: str, names: Iterable[str] = ()) -> Copies | Verdict:
    """The linked topics of a link, of these names or all; a refusal names those that are none."""
    if refusal := _known(image, link):
        return refusal
    of_link = {name: topic for name, topic in sorted(image.topics_by_name.items()) if image.link_of(name) == link}
    wanted = tuple(dict.fromkeys(names)) or tuple(of_link)
    if others := [name for name in wanted if name not in of_link]:
        message = f"not copied by link '{link}': {_some(others)}"
        return Verdict(ErrorCode.unknown_topic_or_partition, message)
    return Copies(tuple(of_link[name] for name in wanted))


def why_not_promoted(image: MetadataImage, asked: LinkRequest, found: Copies) -> Verdict | None:
    """Return None if these topics can be promoted."""
    if not found.topics:
        return Verdict(ErrorCode.invalid_request, f"link '{asked.link}' has no linked topics")
    if is_paused(image.configs[LINK_RESOURCE, asked.link]) and not asked.force:
        message = (
            f"link '{asked.link}' is paused, and a promotion waits until the copy has all that the source has: resume"
            " it first, or promote with --force what the copy has"
        )
        return Verdict(ErrorCode.policy_violation, message)
    if asked.force and asked.fence:
        return Verdict(ErrorCode.invalid_request, "--fence-source waits for the source, and --force does not")
    return None


def why_not_dropped(asked: LinkRequest, found: Copies) -> Verdict | None:
    """Return None if the link, or these of its topics, can be dropped."""
    if asked.topics and not asked.delete_topics:
        return Verdict(ErrorCode.invalid_request, "to drop some topics of a link means to delete them: --delete-topics")
    if found.topics and not asked.delete_topics:
        message = (
            f"link '{asked.link}' has {len(found.topics)} linked topics: {_some(found.names)}. Promote them"
            f" (headrace link promote {asked.link}), or delete them with the link (--delete-topics)"
        )
        return Verdict(ErrorCode.policy_violation, message)
    return None


def fencing(image: MetadataImage, asked: LinkRequest) -> list[ConfigRecord]:
    """The record that says whether the link denies writes at the source; the last promotion decides."""
    present = value_of(image.configs.get((LINK_RESOURCE, asked.link), {}), FENCES)
    wanted = "true" if asked.fence else "false"
    return [] if wanted == present else set_configs(image, asked.link, {FENCES: wanted})


def _created(image: MetadataImage, asked: LinkRequest, values: Values, principal: str) -> Changes:
    if not image.has_cluster_links:
        return Verdict(ErrorCode.unsupported_version, NEEDS_FEATURE)
    if reason := why_no_name(asked.link):
        return Verdict(ErrorCode.invalid_request, reason)
    links = image.links
    if asked.link in links:
        return Verdict(ErrorCode.duplicate_resource, f"link '{asked.link}' already exists")
    if len(links) >= LINKS_MAX:
        return Verdict(ErrorCode.policy_violation, f"the cluster may have no more than {LINKS_MAX} links")
    return _why_not(asked, {}) or set_configs(image, asked.link, {STATE: ACTIVE, **_given(values), CREATOR: principal})


def _altered(image: MetadataImage, asked: LinkRequest, values: Values, principal: str) -> Changes:
    if refusal := _known(image, asked.link):
        return refusal
    own = image.configs[LINK_RESOURCE, asked.link]
    if refusal := _why_not(asked, own):
        return refusal
    changed = {name: value for name, value in values.items() if own.get(name) != value}
    return set_configs(image, asked.link, {**changed, CREATOR: principal}) if changed else []


def _why_not(asked: LinkRequest, own: Mapping[str, str]) -> Verdict | None:
    """Return None if the link can have the configs of the request, in clear, over what it has."""
    if mine := sorted(OWN & asked.configs.keys()):
        return Verdict(ErrorCode.invalid_config, f"{mine[0]}: set by the agent, not by a request")
    stored = {name: _HIDDEN if name in SECRETS else value for name, value in own.items() if name not in asked.configs}
    reason = why_invalid({**stored, **_given(asked.configs)})
    return None if reason is None else Verdict(ErrorCode.invalid_config, reason)


def _known(image: MetadataImage, link: str) -> Verdict | None:
    if (LINK_RESOURCE, link) in image.configs:
        return None
    return Verdict(ErrorCode.resource_not_found, f"link '{link}' does not exist")


def _given(values: Values) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def _record(link: str, name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=LINK_RESOURCE, resource_name=link, name=name, value=value)


def _some(names: Iterable[str]) -> str:
    found = list(names)
    shown = ", ".join(found[:_SHOWN_MAX])
    return shown if len(found) <= _SHOWN_MAX else f"{shown}, ... ({len(found)})"
