"""The list of deliberate bugs: each must be caught in a schedule (test_bugs.py).

| bug in | file |
| --- | --- |
| the write path | bugs_produce.py |
| notes of refused batches | bugs_refusals.py |
| the read path | bugs_fetch.py |
| the file cache of a zone | bugs_zone_cache.py |
| the commit and the sweeper | bugs_metastore.py |
| the merge | bugs_compactor.py |

Each names the requirement that it breaks and the classes of problems (problems.py) of which one must
be reported: a bug that is caught as something else is not caught.
"""

from __future__ import annotations

from tests.simulation import bugs_compactor, bugs_fetch, bugs_metastore, bugs_produce, bugs_refusals, bugs_zone_cache
from tests.simulation.bug import bugs_of

BUGS = bugs_of(bugs_produce, bugs_refusals, bugs_fetch, bugs_zone_cache, bugs_metastore, bugs_compactor)
