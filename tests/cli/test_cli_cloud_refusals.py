"""What an agent says that is started with a wrong place or identity of Azure or Google Cloud: one line, and it ends.

Real agents and a real Postgres. Azurite checks keys and signatures; fake-gcs-server no identity, so the servers that
give tokens are those of the tests.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from headrace.cli.main import main
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from tests.cli.test_cli_clouds import CLUSTER, Place
from tests.fixtures_clouds import ACCOUNT, CONTAINER, CloudBucket, azurite_url, bucket_of, fake_gcs_url

__all__ = ["azurite_url", "fake_gcs_url"]

pytestmark = pytest.mark.requirement("X15", "C12")

KEY, SAS = "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"
OTHER_KEY = base64.b64encode(bytes(64)).decode()
SECRET_SIGNATURE = "c2VjcmV0"
NO_WAIT = {"initial.broker.registration.timeout.ms": "1"}
"""What may be an outage is tried for so long."""
AZURE: dict[str, tuple[Mapping[str, str], Mapping[str, str], str]] = {
    "container": (
        {"bucket": f"az://{ACCOUNT}/absent/logs"},
        {},
        "code=ContainerNotFound check=the container's name, and the account's",
    ),
    "key": ({}, {KEY: OTHER_KEY}, f"check={KEY}, and the account's name"),
    "key that is none": ({}, {KEY: "abc"}, f"bad account key: check={KEY}"),
    "signature": (
        {},
        {SAS: f"sv=2023-11-03&ss=b&srt=sco&sp=rwdl&sig={SECRET_SIGNATURE}"},
        f"check={SAS}: it needs the rights",
    ),
    "account": ({"bucket": f"az://other/{CONTAINER}/logs"}, {}, f"check={KEY}, and the account's name"),
    "host": (
        {"bucket": "az://other/logs", "azure.endpoint": "https://other.headrace.invalid", **NO_WAIT},
        {},
        "check=the bucket's address, and azure.endpoint",
    ),
    "no identity": (
        {},
        {KEY: "", "AZURE_POD_IDENTITY_AUTHORITY_HOST": "http://127.0.0.1:9"},
        f"check=the workload or managed identity (AZURE_CLIENT_ID, AZURE_TENANT_ID), or {KEY}",
    ),
}
"""Settings and environment that are wrong, and what is said."""


@pytest.fixture(scope="module")
def places(postgres_server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A formatted cluster: its metastore will do for any bucket that cannot be read."""
    place = Place(postgres_server, bucket_of("azure", request))
    assert main(["storage", "format", "-t", CLUSTER, *place.flags()]) == 0
    yield place
    place.lose()


def check_refusal(place: Place, bucket: Mapping[str, str], said: str) -> None:
    """An agent with this bucket ends with one line."""
    told = place.refusal(CloudBucket(bucket))
    assert (told.startswith("error: "), told.count("\n")) == (True, 1), told
    assert said in told
    for secret in (OTHER_KEY, SECRET_SIGNATURE):
        assert secret not in told


@pytest.mark.parametrize(
    "wrong", [pytest.param(each, marks=[] if each in ("container", "key") else [pytest.mark.slow]) for each in AZURE]
)
def test_what_is_wrong_on_azure(wrong: str, places: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings, environment, said = AZURE[wrong]
    for name, value in {"HOME": str(tmp_path), "PATH": str(tmp_path), **environment}.items():
        monkeypatch.setenv(name, value)  # no tool of a cloud is asked
    check_refusal(places, {**places.bucket.settings, **settings}, said)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param({"bucket": "gs://absent/logs"}, "code=NoSuchBucket", id="bucket"),
        pytest.param(
            {"gcs.endpoint": "https://storage.headrace.invalid", **NO_WAIT},
            "check=the bucket's address, and gcs.endpoint",
            id="host",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_wrong_place_on_google(
    settings: Mapping[str, str], said: str, places: Place, request: pytest.FixtureRequest
) -> None:
    check_refusal(places, {**bucket_of("google", request).settings, **settings}, said)


class Refusing(BaseHTTPRequestHandler):
    """Says of each account that it is not known, as Google does."""

    def do_POST(self) -> None:
        body = json.dumps({"error": "invalid_grant", "error_description": "Invalid JWT Signature."}).encode()
        self.send_response(400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


@pytest.fixture
def issuer() -> Iterator[str]:
    """URL of a server that gives no token."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()
        thread.join()


def service_account(issuer: str) -> str:
    """The file of a key that its owner deleted."""
    key = generate_private_key(public_exponent=65_537, key_size=2_048)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return json.dumps(
        {"type": "service_account", "client_email": "a@b", "token_uri": issuer, "private_key": text, "project_id": "p"}
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(None, "no credentials for the bucket: error=File", id="no file", marks=pytest.mark.slow),
        pytest.param(
            "{}",
            "check=the workload's service account, or GOOGLE_APPLICATION_CREDENTIALS",
            id="no key",
            marks=pytest.mark.slow,
        ),
        pytest.param("deleted", "check=the service account and its key or binding", id="deleted key"),
    ],
)
def test_a_wrong_identity_of_google(
    content: str | None,
    said: str,
    places: Place,
    issuer: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    bucket = bucket_of("google", request)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    file = tmp_path / "account.json"
    if content is not None:
        file.write_text(service_account(issuer) if content == "deleted" else content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    check_refusal(places, bucket.settings, said)
