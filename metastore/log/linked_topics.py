"""Says why a copy of another cluster's topic takes no change: the refusals of all requests about linked topics.

Place: asked by every request that writes to a topic, or that removes records, partitions or the topic; the metastore
refuses the same by the partitions' state.
Invariant: a linked topic has the config `link.name` as long as it is a copy; the record that promotes it removes the
config. A message names the link, and the command that promotes.
"""

from __future__ import annotations

from headrace.metastore.log.image import MetadataImage


def why_linked(image: MetadataImage, topic: str, refused: str) -> str | None:
    """Return None for an ordinary topic, else the message. `refused`: what it does not allow, as `takes no records`."""
    link = image.link_of(topic)
    return linked_message(topic, link, refused) if link else None


def linked_message(topic: str, link: str, refused: str) -> str:
    """Return the message for a topic that is a copy of this link."""
    return (
        f"topic '{topic}' is a copy that link '{link}' keeps: it {refused} before it is promoted"
        f" (headrace link promote {link} --topics {topic})"
    )


NO_RECORDS = "takes no records"
NO_DELETION = "is not deleted"
NO_OTHER_COUNT = "has the partitions of its source, and no other number"
NO_TRANSACTION = "takes part in no transaction"
