"""The options of a write, with the names of Spark's Kafka sink where it has them. Pure.

Place: the first step of a batch write and of a stream.
Invariant: as scan/options.py: an option that is not known, or has no such value, is refused by name.
Source: Spark's Structured Streaming + Kafka Integration Guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.scan.errors import OptionError
from headrace.scan.options import MIB, GivenOptions, Option, refuse_unknown
from headrace.storage.file_id import TERM_HOURS_MAX
from headrace.storage.records.compression import Codec

FILE_BYTES = 32 * MIB
TERM_HOURS = 24
_WRITER_CHARACTERS_MAX = 200

WRITE_OPTIONS: Mapping[str, Option] = {
    "topic": Option("both", "the topic of all rows; without it, each row has a column `topic`"),
    "writeId": Option(
        "batch",
        "a name for this write: a second write with the same id writes nothing, and one to another topic is refused."
        " For jobs that are repeated, and in `foreachBatch`. Default: none, every write is a new one",
    ),
    "compression": Option(
        "both", "`none`, `gzip`, `snappy`, `lz4` or `zstd` (default); a topic with a `compression.type` has that one"
    ),
    "fileBytes": Option("both", f"a task stores a segment file at about this size (default {FILE_BYTES:,})"),
    "writeTermHours": Option(
        "both",
        f"the job, or the micro-batch, must end so many hours after its first file (default {TERM_HOURS}, at most"
        f" {TERM_HOURS_MAX}); files of failed tasks are kept this long",
    ),
}
IGNORED = frozenset({"checkpointlocation", "includeheaders", "path", "queryname"})
"""Spark's own options of a stream; and one of its Kafka sink, as headers are written if there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """A checked set of options."""

    topic: str | None
    write_id: str | None
    codec: Codec
    file_bytes: int
    term_hours: int


def parse_write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """The options of a batch write or of a stream. OptionError. Settings among them are left to `settings_of`."""
    refuse_unknown(options, WRITE_OPTIONS, streaming=streaming, ignored=IGNORED)
    given = GivenOptions(options)
    topic, write_id = given.text("topic"), given.text("writeId")
    if topic == "" or write_id == "" or len(write_id or "") > _WRITER_CHARACTERS_MAX:
        raise OptionError(f"topic and writeId must have 1 to {_WRITER_CHARACTERS_MAX} characters")
    term_hours = given.whole("writeTermHours", 1, TERM_HOURS) or TERM_HOURS
    if term_hours > TERM_HOURS_MAX:
        raise OptionError(f"writeTermHours must be at most {TERM_HOURS_MAX}: {term_hours}")
    return WriteOptions(
        topic=topic,
        write_id=write_id,
        codec=given.choice("compression", {codec.name.lower(): codec for codec in Codec}, Codec.ZSTD),
        file_bytes=given.whole("fileBytes", MIB, FILE_BYTES) or FILE_BYTES,
        term_hours=term_hours,
    )
