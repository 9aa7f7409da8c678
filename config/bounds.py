"""Types of settings with their bounds.

Place: used by the declarations (settings.py, security_settings.py).
Invariant: every number fits a bigint of Postgres, because the metastore's functions read cluster settings.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headrace.config.node_ids import NODE_ID_MAX

SHORT_MAX = 2**15 - 1
LONG_MAX = 2**63 - 1

PositiveInt = Annotated[int, Meta(ge=1, le=LONG_MAX)]
NonNegativeInt = Annotated[int, Meta(ge=0, le=LONG_MAX)]
AtLeastMinusOne = Annotated[int, Meta(ge=-1, le=LONG_MAX)]
Port = Annotated[int, Meta(ge=0, le=65535)]
NodeId = Annotated[int, Meta(ge=0, le=NODE_ID_MAX)]
