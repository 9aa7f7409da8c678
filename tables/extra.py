"""Whether the extra `tables` is installed: what all modules of this package need.

Place: asked by the role, the commands and the pages about tables, before they import anything else of this package.
"""

from __future__ import annotations

from headrace.config.extras import not_installed
from headrace.storage.errors import InvalidError


def require_tables() -> None:
    """InvalidError that says how to install the extra, if it is missing."""
    try:
        import fastavro  # noqa: F401 -- only to say what is missing
        import google.protobuf  # noqa: F401
        import jsonschema  # noqa: F401
        import pyarrow  # noqa: F401
        import pyiceberg  # noqa: F401
    except ImportError as error:
        raise InvalidError(not_installed(error.name or "pyiceberg", "tables")) from error
