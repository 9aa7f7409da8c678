"""Fixtures that the contract suites share. All of them call the metastore's operations with arguments that change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.groups.fake_group_api import FakeGroupApi
from tests.fixtures_clouds import azurite_url, fake_gcs_url
from tests.fixtures_s3 import aws_credentials, https_s3, https_server, moto_url, real_s3_url, s3_url
from tests.live_arguments import spoil_arguments
from tests.model.job_model import ModelJobs
from tests.model.segment_end_model import ModelLifecycle

__all__ = [
    "aws_credentials",
    "azurite_url",
    "fake_gcs_url",
    "https_s3",
    "https_server",
    "moto_url",
    "real_s3_url",
    "s3_url",
]


@pytest.fixture(autouse=True, scope="module")
def arguments_that_change() -> Iterator[None]:
    """See tests/live_arguments.py."""
    with pytest.MonkeyPatch.context() as patch:
        spoil_arguments(patch, PostgresMetastore, FakeClusterApi, FakeGroupApi, ModelJobs, ModelLifecycle)
        yield
