"""`headrace compactor` with a planted bug: retention reads the process's own file where the cluster has no value.

Run as a module with the flags of `headrace compactor`; tests/faults/test_unequal_files.py must catch it.
"""

from __future__ import annotations

import sys

from headrace.cli.main import main
from headrace.compactor import retention
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage

OWN_FILE = EffectiveConfigs(Settings())
"""Its retention is the default of 168 hours."""


def _of_its_own_file(image: MetadataImage, topic: str, name: str) -> str:
    return OWN_FILE.topic_value(image, topic, name)


if __name__ == "__main__":
    retention.decided_topic_value = _of_its_own_file  # type: ignore[attr-defined]
    sys.exit(main(["compactor", *sys.argv[1:]]))
