"""Loads the schemas of all requests: what an agent does in its first seconds, once for all agents of the tests."""

from __future__ import annotations

from headrace.agent.serve.dispatch import loaded_schemas
from headrace.protocol.api_versions import APIS

LOADED = list(loaded_schemas(APIS.values()))
