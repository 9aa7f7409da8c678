"""Names below DOMAIN resolve to 127.0.0.1, as a wildcard DNS record for a bucket's host does.

Place: tests patch socket.getaddrinfo with it; a process with this folder on PYTHONPATH runs it at its start, since
Python imports the module `sitecustomize`. No name server is asked for these names.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

DOMAIN = "s3.headrace.test"
"""`test` is reserved (RFC 2606): no name server knows it."""
asked: set[str] = set()
"""Names below DOMAIN that were resolved in this process."""
_getaddrinfo = socket.getaddrinfo


def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
    """socket.getaddrinfo."""
    name = host.decode() if isinstance(host, bytes) else host
    if isinstance(name, str) and (name == DOMAIN or name.endswith(f".{DOMAIN}")):
        asked.add(name)
        host = "127.0.0.1"
    return _getaddrinfo(host, *args, **options)


if __name__ == "sitecustomize":
    setattr(sys.modules["socket"], "getaddrinfo", getaddrinfo)  # noqa: B010 - mypy knows its signature
