"""The compose files: accepted by the compose specification's own loader, and their settings by Headrace.

Not tested: the containers themselves, because no container engine is needed for the tests.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.config.declared import ENV_PREFIX
from headrace.config.listeners import listeners
from headrace.config.load import load
from headrace.storage.cluster_properties import check_cluster_id
from tests.tools.deploy import COMPOSE

DEPLOY = Path(__file__).parents[2] / "deploy"
FILE = DEPLOY / "compose.yaml"
EXAMPLE = DEPLOY.parent / "examples" / "kafka-ui" / "compose.yaml"
OURS = ("agent-1", "agent-2", "compactor", "format")
CLOUDS = {
    "azure": {"HEADRACE_BUCKET": "az://account1/logs/headrace", "AZURE_STORAGE_KEY": "a key"},
    "google": {"HEADRACE_BUCKET": "gs://logs/headrace", "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json"},
}
"""The shell from which each is started, as the file's own comment says."""


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The same as YAML reads them, with merged anchors."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]
    return found


@pytest.mark.needs("compose-go")
@pytest.mark.parametrize("file", [FILE, EXAMPLE], ids=["deploy", "kafka-ui"])
def test_the_specifications_loader_accepts_it(file: Path) -> None:
    done = subprocess.run([COMPOSE, str(file)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    loaded = yaml.safe_load(done.stdout)
    assert loaded["services"].keys() == yaml.safe_load(file.read_text(encoding="utf-8"))["services"].keys()


@pytest.mark.needs("compose-go")
def test_the_loader_refuses_a_wrong_key(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text(encoding="utf-8").replace("read_only:", "readonly:"), encoding="utf-8")
    done = subprocess.run([COMPOSE, str(wrong)], capture_output=True, text=True, check=False, timeout=300)
    assert "readonly" in done.stdout + done.stderr
    assert done.returncode != 0


@pytest.mark.needs("compose-go")
@pytest.mark.requirement("X15")
@pytest.mark.parametrize("cloud", list(CLOUDS))
def test_a_bucket_of_a_cloud_takes_the_place_of_the_s3_server(
    cloud: str, services: dict[str, Any], tmp_path: Path
) -> None:
    """The loader knows no environment, so what it has to have is written into the file here."""
    shell, text = CLOUDS[cloud], (DEPLOY / f"compose.{cloud}.yaml").read_text(encoding="utf-8")
    assert all(f"{name}=" in text.partition("x-bucket")[0] for name in shell), "the comment says what to export"
    for name, value in shell.items():
        text = re.sub(rf"\$\{{{name}:\?[^}}]+\}}", value, text)
    (tmp_path / "compose.yaml").write_text(text, encoding="utf-8")
    command = [COMPOSE, str(FILE), str(tmp_path / "compose.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    loaded = yaml.safe_load(done.stdout)
    assert loaded["services"].keys() == services.keys() - {"s3", "bucket"}
    assert loaded["services"]["format"]["depends_on"].keys() == {"postgres"}
    for name in OURS:
        words = loaded["services"][name]["environment"]
        passed = {word: shell[word] for word in words if word in shell}
        environment = passed | dict(word.split("=", 1) for word in words if "=" in word)
        settings = load(environ={key: value for key, value in environment.items() if key.startswith(ENV_PREFIX)})
        assert (settings.bucket, settings.s3_endpoint) == (shell["HEADRACE_BUCKET"], None)
        assert not [key for key in environment if key.startswith("AWS_")]
        assert shell.keys() <= environment.keys()
        mounts = loaded["services"][name].get("volumes", [])
        assert [(each["source"], each["target"]) for each in mounts] == [
            (file, environment[key]) for key, file in shell.items() if key.startswith("GOOGLE_")
        ]


@pytest.mark.parametrize("name", OURS)
def test_the_settings_of_a_service_are_accepted(name: str, services: dict[str, Any]) -> None:
    environment = {key: value for key, value in services[name]["environment"].items() if key.startswith(ENV_PREFIX)}
    settings = load(environ=environment)
    assert settings.bucket == "s3://headrace/cluster"
    if name.startswith("agent"):
        found = listeners(settings)
        assert found.inter_broker == "INTERNAL"
        addresses = {endpoint.name: (endpoint.host, endpoint.port) for endpoint in found.advertised}
        assert addresses["INTERNAL"] == (name, 9094)
        (published,) = services[name]["ports"]
        assert published == f"127.0.0.1:{addresses['HOST'][1]}:9092"


def test_containers_of_headrace_are_unprivileged(services: dict[str, Any]) -> None:
    for name in OURS:
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]


def test_only_this_machine_reaches_the_ports(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_cluster_id_and_the_mounted_files_are_there(services: dict[str, Any]) -> None:
    (option,) = [part for part in services["format"]["command"] if part.startswith("--cluster-id=")]
    check_cluster_id(option.removeprefix("--cluster-id="))
    mounts = [volume for service in services.values() for volume in service.get("volumes", [])]
    files = [mount.split(":")[0] for mount in mounts if mount.startswith(".")]
    assert len(files) == 4
    assert not [file for file in files if not (DEPLOY / file).exists()]


def test_prometheus_asks_the_services_of_this_file(services: dict[str, Any]) -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    targets = [target.split(":")[0] for target in job["static_configs"][0]["targets"]]
    assert sorted(targets) == ["agent-1", "agent-2", "compactor"]
    assert set(targets) <= services.keys()
