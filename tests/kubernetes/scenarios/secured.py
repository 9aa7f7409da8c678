"""Clients log in over TLS, by the values file of KUBERNETES.md: first users, ADMIN, `helm test`."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import psycopg
import yaml

from load.self_signed import write_certificate
from tests.kubernetes.cluster.stores import metastore_url
from tests.kubernetes.scenarios.install import BUCKET_SECRET, METASTORE_SECRET, ROLLOUT, secret
from tests.kubernetes.scenarios.release import NAME, NAMESPACE, ROOT, CommandError, Release

VALUES = ROOT / "tests" / "deploy" / "values" / "secure.yaml"
PASSWORDS = {"admin": "of-admin", "orders": "of-orders"}
DATABASE = "secured"
CLIENT = """\
security.protocol=SASL_SSL
ssl.truststore.type=PEM
ssl.truststore.location=/etc/headrace-client/ca.pem
ssl.endpoint.identification.algorithm=
sasl.mechanism=SCRAM-SHA-512
sasl.username={user}
sasl.password={password}
"""
"""Agents advertise their pods' addresses, which no certificate names."""


def secured(release: Release) -> str:
    """A new cluster in a separate database: `helm test` logs in, and a wrong password does not."""
    _make_place(release)
    values = yaml.safe_load(VALUES.read_text())
    release.values = {name: value for name, value in values.items() if name not in ("image", "metastore", "bucket")}
    release.values |= {
        "image/repository": "headrace", "image/tag": "one", "agents/replicas": 2,
        "agents/resources/requests/cpu": "500m",
        "metastore/existingSecret": METASTORE_SECRET, "bucket/existingSecret": BUCKET_SECRET,
        "bucket/url": f"s3://{release.state['bucket']}/{DATABASE}", "bucket/endpoint": release.state["s3_url"],
        "bucket/region": "us-east-1",
    }  # fmt: skip
    release.upgrade(timeout=ROLLOUT)
    release.wait_for_agents(2)
    output = release.helm("test", NAME, "--timeout", "2m")
    assert "Succeeded" in output, output
    client_secret(release, "wrong")
    told = failed_test(release)
    assert "authentication" in told.lower(), told
    client_secret(release, PASSWORDS["admin"])
    return "helm test produced and consumed as admin over SASL_SSL; with a wrong password it was refused"


def _make_place(release: Release) -> None:
    with contextlib.suppress(CommandError):
        release.kubectl("create", "namespace", NAMESPACE)
    with psycopg.connect(release.state["metastore_url"], autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE} ENCODING 'UTF8' TEMPLATE template0")
    whole = metastore_url(release.state["metastore"]["password"]).rpartition("/")[0]
    secret(release, METASTORE_SECRET, {"metastore-url": f"{whole}/{DATABASE}"})
    secret(release, BUCKET_SECRET, {
        "access-key-id": release.state["access_key"], "secret-access-key": release.state["secret_key"],
    })  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = write_certificate(Path(folder), [NAME])
        release.state["authority"] = certificate.read_text()
        secret(release, "headrace-tls", {"tls-combined.pem": key.read_text() + certificate.read_text()})
    secret(release, "headrace-users", PASSWORDS)
    client_secret(release, PASSWORDS["admin"])


def failed_test(release: Release, pod: str = f"{NAME}-test") -> str:
    """Run `helm test`, which must fail; return the log of this pod."""
    try:
        release.helm("test", NAME, "--timeout", "2m")
    except CommandError:
        return release.log(pod)
    raise AssertionError("helm test passed")


def client_secret(release: Release, password: str) -> None:
    """Write how the chart's own clients log in."""
    properties = CLIENT.format(user="admin", password=password)
    secret(release, "headrace-client", {"client.properties": properties, "ca.pem": release.state["authority"]})
