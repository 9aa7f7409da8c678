"""Everything that the reference model knows of one partition."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.metastore.api.read import Extent
from tests.model.producer_model import ProducerState


@dataclass
class ModelPartition:
    """`extents` may hold some below the log start: those that no call has removed yet."""

    leader_epoch: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    extents: list[Extent] = field(default_factory=list)
    created_ms: int = 0
    producers: dict[int, ProducerState] = field(default_factory=dict)
    is_marked: bool = False

    @property
    def visible_extents(self) -> list[Extent]:
        """Those that readers may see."""
        return [extent for extent in self.extents if extent.last_offset >= self.log_start_offset]
