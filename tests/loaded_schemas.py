"""Loads the schemas of all requests: what an agent does in its first seconds, once for all agents of the tests.

These agents find the names of tests/loopback_names, too. Their garbage collector leaves out what is loaded here.
"""

from __future__ import annotations

import gc
import socket

from headrace.agent.apis.dispatch import loaded_schemas
from headrace.protocol.api_versions import APIS
from tests.loopback_names import sitecustomize

setattr(socket, "getaddrinfo", sitecustomize.getaddrinfo)  # noqa: B010 - mypy knows its signature
gc.disable()
LOADED = list(loaded_schemas(APIS.values()))
gc.freeze()
gc.enable()
