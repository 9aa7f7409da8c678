"""What all tables are made of."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, CheckConstraint, Column, DateTime, MetaData, text

metadata = MetaData()
TIMESTAMP = DateTime(timezone=True)


def column(name: str, kind: Any, *, key: bool = False, null: bool = False, default: str | None = None) -> Column[Any]:
    """Never null and never a sequence unless said so."""
    server_default = None if default is None else text(default)
    return Column(
        name, kind, primary_key=key, nullable=null and not key, autoincrement=False, server_default=server_default
    )


def singleton() -> tuple[Column[Any], CheckConstraint]:
    """The key of a table with one row."""
    return column("singleton", Boolean(), key=True, default="true"), CheckConstraint("singleton")


def churning(scale: float, threshold: int, **more: float) -> dict[str, Any]:
    """Storage parameters of a table with rows that are updated all the time."""
    options = {**more, "autovacuum_vacuum_scale_factor": scale, "autovacuum_vacuum_threshold": threshold}
    return {"postgresql_with": options}
