"""The request LINKS, which only Headrace has: create, change, list, pause, promote and drop links.

Place: between agent/topics/links.py and `headrace link`, under a private API key that is not advertised. Request
header v1, response header v0; the body is one JSON object: its fields are those of LinkRequest and LinkResponse.
Invariant: both sides use this module, so what one writes the other reads. A body has at most BODY_BYTES_MAX, and an
unknown field is refused: an older agent does not do half of what a newer tool asks. A secret of a link is only in the
request that sets it, in no response.
"""

from __future__ import annotations

import enum
import struct

import msgspec

from headrace.protocol import wire
from headrace.protocol.wire import INT32
from headrace.storage.errors import InvalidError

LINKS_KEY = 31_290
"""API key below those between agents, and those on partition counts."""
LINKS_VERSION = 0
BODY_BYTES_MAX = 2 * 1024 * 1024
TOPICS_MAX = 10_000
"""Topics that a request names, and that a response shows."""
NEVER = -1
"""A time or a lag that is not known: no worker has reported yet."""
_HEADER = struct.Struct(">hhi")


class LinkOp(enum.Enum):
    """What is asked for. LIST, SHOW and GROUPS change nothing."""

    CREATE = "create"
    ALTER = "alter"
    """Other configs of a link; those that are not named stay."""
    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    """Linked topics become ordinary ones, as soon as they have all that their source has."""
    DROP = "drop"
    """The link ends. Refused while it has linked topics, unless they are to be deleted."""
    LIST = "list"
    """All links, without their topics."""
    SHOW = "show"
    """One link, with its topics."""
    GROUPS = "groups"
    """One link, with the groups of which it copies the offsets."""


READS = (LinkOp.LIST, LinkOp.SHOW, LinkOp.GROUPS)


class LinkRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tool asks an agent for."""

    op: LinkOp
    link: str = ""
    """The name of the link; empty only for LIST."""
    configs: dict[str, str | None] = {}
    """CREATE, ALTER: by name, in clear; None removes one."""
    topics: tuple[str, ...] = ()
    """PROMOTE, DROP: names of linked topics; empty: all of the link."""
    force: bool = False
    """PROMOTE: with what the copy has, also without the rest."""
    fence: bool = False
    """PROMOTE: deny writes to the topics at the source first."""
    delete_topics: bool = False
    """DROP: delete the linked topics. With `topics`, the link stays, and copies these again if it names them."""
    validate_only: bool = False
    """Check it, change nothing."""


class ShownTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that a link copies, or does not, and why."""

    name: str
    partitions: int = 0
    records: int = 0
    """Offsets that the copy has, from its log start on."""
    source_records: int = 0
    """Offsets that the source has, as of the last report."""
    lag: int = 0
    """Offsets that the copy lacks."""
    lag_ms: int = 0
    """How long ago the copy last had all that the source had; NEVER: it has not had it yet."""
    copied_bytes: int = 0
    lost: int = 0
    """Offsets that the source no longer had when the copy came to them."""
    promotion: str = ""
    """Empty, `asked` or `forced`."""
    ready: int = 0
    """Partitions that may be promoted."""
    problems: tuple[str, ...] = ()
    """Why it is not copied, or which partitions are not; the first ones."""
    is_linked: bool = True
    """False: the source has it, and it is not copied here."""


class ShownGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that a link names."""

    group_id: str
    kind: str = ""
    """Kafka's type at the source."""
    source_state: str = ""
    """Kafka's state at the source."""
    has_members_there: bool = False
    is_here: bool = False
    """It was seen to have members here: from then on its offsets are not copied."""
    offsets: int = 0
    """Partitions of copies in which the source has an offset of it."""
    behind: int = 0
    """The sum of what its offsets here are behind those of the source."""
    copied_ms: int = NEVER
    """How long ago its offsets were last read at the source and written here."""
    problem: str = ""
    """Why it is not copied; empty: it is."""


class ShownLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link, with the sums of its topics."""

    name: str
    configs: dict[str, str | None] = {}
    """None: a secret that is set."""
    cluster_id: str = ""
    """The source's; empty: no worker has reached it yet."""
    seen_ms: int = NEVER
    """How long ago a worker last looked at the source."""
    problem: str = ""
    """Why the source cannot be read; empty: it can."""
    topic_count: int = 0
    partitions: int = 0
    records: int = 0
    source_records: int = 0
    lag: int = 0
    lag_bytes: int = 0
    """What is left to copy, by the mean size of a copied record."""
    lag_ms: int = 0
    """The largest of its partitions'."""
    copied_bytes: int = 0
    lost: int = 0
    problems: int = 0
    """Partitions with a problem, and topics that are not copied."""
    topics: tuple[ShownTopic, ...] = ()
    """SHOW: at most TOPICS_MAX, those with problems and the largest lag first."""
    groups_problem: str = ""
    """Why offsets of groups are not copied; empty: they are, if the link names some."""
    groups: tuple[ShownGroup, ...] = ()
    """GROUPS: at most TOPICS_MAX, those with problems and those that are furthest behind first."""


class LinkResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`error_code` 0: it is done, and the agent that answered shows it."""

    error_code: int = 0
    message: str | None = None
    links: tuple[ShownLink, ...] = ()
    topics: tuple[str, ...] = ()
    """Topics that the change is about."""


def encode_link_request(request: LinkRequest, client_id: str, correlation_id: int) -> bytes:
    """The frame with its length. InvalidError for one that is too large."""
    body = msgspec.json.encode(request)
    if len(body) > BODY_BYTES_MAX:
        raise InvalidError(f"a request about links has at most {BODY_BYTES_MAX} bytes: size={len(body)}")
    frame = _HEADER.pack(LINKS_KEY, LINKS_VERSION, correlation_id) + wire.string(client_id, False) + body
    return INT32.pack(len(frame)) + frame


def decode_link_request(body: memoryview) -> LinkRequest:
    """InvalidError for other bytes."""
    if len(body) > BODY_BYTES_MAX:
        raise InvalidError(f"malformed request about links: size={len(body)} max={BODY_BYTES_MAX}")
    try:
        found = msgspec.json.decode(body, type=LinkRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"malformed request about links: {error}") from error
    if len(found.topics) > TOPICS_MAX:
        raise InvalidError(f"a request about links names at most {TOPICS_MAX} topics: topics={len(found.topics)}")
    return found


def encode_link_response(correlation_id: int, response: LinkResponse) -> bytes:
    """The frame after its length."""
    return INT32.pack(correlation_id) + msgspec.json.encode(response)


def decode_link_response(frame: memoryview) -> LinkResponse:
    """InvalidError for other bytes."""
    try:
        return msgspec.json.decode(frame[INT32.size :], type=LinkResponse)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"malformed response about links: {error}") from error
