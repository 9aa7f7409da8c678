"""The one error of the settings.

Place: raised by load.py and by whoever checks settings against each other; caught by cli/main.py, which imports this
module and not the settings: `headrace --help` needs none.
"""

from __future__ import annotations


class ConfigError(ValueError):
    """Settings are unknown or their values not acceptable; the message names them and says where they were found."""
