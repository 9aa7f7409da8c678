"""The life of a metastore: which server may acknowledge, decided between Postgres and the bucket."""

from __future__ import annotations
