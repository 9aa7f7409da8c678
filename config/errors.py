"""The error for settings.

Place: raised by load.py and by code that checks settings against each other; caught by cli/main.py, which imports
this module and not the settings, because `headrace --help` does not need them.
"""

from __future__ import annotations


class ConfigError(ValueError):
    """Unknown settings or invalid values; the message names each with its source."""
