"""franz-go's own tests of share groups against an agent: an ETL pipeline of two groups with releases, rejections and
members that come and go; acknowledgements at the end of a client; and the offsets of a group by admin requests.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from load.dev_server import DevServer
from tests.tools import FRANZ_GO_TESTS

pytestmark = [pytest.mark.needs("franz-go-tests"), pytest.mark.slow]
TESTS = (
    "TestShareGroupETL",
    "TestShareGroupAckOnClose",
    "TestShareGroupOffsetsAdmin",
    "TestShareGroup",
)
RECORDS = 20_000
SECONDS_MAX = 900
VERDICT = re.compile(r"^--- (PASS|FAIL|SKIP): (\w+)", re.MULTILINE)


@pytest.mark.requirement("X12")
def test_franz_go_s_tests_of_share_groups_pass(server: DevServer, tmp_path: Path) -> None:
    chosen = f"^({'|'.join(TESTS)})$"
    done = subprocess.run(
        [str(FRANZ_GO_TESTS), "-test.v", f"-test.run={chosen}", f"-test.timeout={SECONDS_MAX}s"],
        cwd=tmp_path,
        env=os.environ | {"KGO_SEEDS": server.bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(RECORDS)},
        capture_output=True,
        text=True,
        check=False,
    )
    verdicts = {name: verdict for verdict, name in VERDICT.findall(done.stdout)}
    assert (done.returncode, verdicts) == (0, dict.fromkeys(TESTS, "PASS")), done.stdout[-5_000:]
