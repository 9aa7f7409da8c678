"""What can be wrong with a scan: its options, the asked offsets, a segment file.

Place: raised by the other modules of scan/; a Spark user sees the text in the failed query or task.
Invariant: the text names the option, or topic, partition and offsets, and what to do.
"""

from __future__ import annotations

from headrace.storage.errors import InvalidError


class OptionError(InvalidError):
    """An option of the scan has no such value, or contradicts another one."""


class DataLossError(InvalidError):
    """Asked offsets are not in the log (any more), and failOnDataLoss is true."""


class UnreadableFileError(InvalidError):
    """A segment file is gone, or its bytes are not those that the metastore describes."""


class BulkWriteError(InvalidError):
    """A row does not fit its topic, or a write cannot be committed: nothing of it was, and never will be."""
