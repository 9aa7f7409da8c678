"""What the steps of the active controller ask of the metastore.

Place: taken by each step of this folder; a process with the role controller passes its metastore.
"""

from __future__ import annotations

from typing import Protocol

from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.api.controller import ControllerApi
from headrace.metastore.api.jobs import JobApi
from headrace.metastore.api.reports import ReportApi
from headrace.metastore.api.retention import RetentionApi
from headrace.metastore.api.settings import SettingsApi
from headrace.metastore.api.topics import PartitionApi
from headrace.metastore.api.transactions import TransactionApi


class ControllerMetastore(
    ControllerApi, ClusterApi, PartitionApi, RetentionApi, SettingsApi, TransactionApi, JobApi, ReportApi, Protocol
):
    """What the active controller's steps use."""
