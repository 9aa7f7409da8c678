"""`helm uninstall` removes all that runs and leaves the data; another install continues with it."""

from __future__ import annotations

from typing import Any

import boto3
import psycopg

from tests.kubernetes.scenarios import clients
from tests.kubernetes.scenarios.commands import records_of
from tests.kubernetes.scenarios.install import ROLLOUT
from tests.kubernetes.scenarios.release import NAME, Release

PART_OF = "app.kubernetes.io/instance=headrace"


def uninstall(release: Release) -> str:
    """Topics, offsets and objects are the same after an uninstall, and a new install reads them."""
    with clients.inside(release) as watched:
        pass
    release.helm("uninstall", NAME, "--wait", "--timeout", "3m")
    release.wait_for("no pod of the release", lambda: not [pod for pod in release.pods(PART_OF) if _runs(pod)])
    before = _data(release)
    assert before[0] > 0, before
    assert before[1] > 0, before
    cluster_id = _cluster_id(release)
    release.upgrade({"cluster/id": cluster_id}, timeout=ROLLOUT)
    assert watched.summary is not None
    read = records_of(release, watched.topic)
    assert read == watched.summary["acknowledged"], (read, watched.summary)
    release.helm("uninstall", NAME, "--wait", "--timeout", "3m")
    return f"{before[0]} tables and {before[1]} objects stayed; a second install read all {read} records of a topic"


def _runs(pod: dict[str, dict[str, object]]) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _data(release: Release) -> tuple[int, int]:
    """(tables in the metastore, objects in the bucket)."""
    with psycopg.connect(release.state["metastore_url"]) as connection:
        rows = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname NOT LIKE 'pg%'").fetchone()
    pages = _s3(release).get_paginator("list_objects_v2").paginate(Bucket=release.state["bucket"])
    assert rows is not None
    return int(rows[0]), sum(len(page.get("Contents", ())) for page in pages)


def _cluster_id(release: Release) -> str:
    """The install drew it; the bucket holds it."""
    found = (
        _s3(release)
        .get_object(Bucket=release.state["bucket"], Key="cluster/cluster.properties")["Body"]
        .read()
        .decode()
    )
    (line,) = (line for line in found.splitlines() if line.startswith("cluster.id="))
    return str(line.partition("=")[2])


def _s3(release: Release) -> Any:
    state = release.state
    return boto3.client(
        "s3", endpoint_url=state["s3_url"], region_name="us-east-1",
        aws_access_key_id=state["access_key"], aws_secret_access_key=state["secret_key"],
    )  # fmt: skip
