"""The rows of the matrix of ACLs, without a cluster: each API is in it."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from headrace.protocol.api_versions import APIS
from tests.acl_matrix.cases import WITHOUT_GRANTS, cases

ROWS = cases(uuid.UUID(int=7))


@pytest.mark.requirement("C13.2")
def test_each_api_has_a_row() -> None:
    """An API that is served from now on needs a row in tests/acl_matrix/cases.py, or a place in WITHOUT_GRANTS."""
    assert {int(case.api_key) for case in ROWS} == APIS.keys() - WITHOUT_GRANTS
    assert APIS.keys() >= WITHOUT_GRANTS


def test_labels_are_distinct() -> None:
    """Users are named after labels: two rows with one label would share their grants."""
    assert max(Counter(case.label for case in ROWS).values()) == 1


def test_each_row_can_be_sent_in_a_served_version() -> None:
    for case in ROWS:
        api = APIS[case.api_key]
        assert max(api.min_version, case.version_min) <= min(api.max_version, case.version_max), case.label
