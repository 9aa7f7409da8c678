"""The manifests in deploy/ name what is there: settings, files, accounts. They have met no cluster here."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.config.declared import ENV_PREFIX, declared

REPOSITORY = Path(__file__).parents[2]
MANIFESTS = sorted((REPOSITORY / "deploy").glob("*.yaml"))
IN_IMAGE = "/opt/headrace/"


def documents(path: Path) -> list[dict[str, Any]]:
    pytest.importorskip("yaml", reason="PyYAML is needed: it comes with the tests' requirements")
    return list(importlib.import_module("yaml").safe_load_all(path.read_text(encoding="utf-8")))


def by_kind() -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for path in MANIFESTS for document in documents(path)}


def conf(container: dict[str, Any]) -> dict[str, str]:
    """The arguments of spark-submit."""
    options = [arg.removeprefix("--conf=") for arg in container["args"] if arg.startswith("--conf=")]
    return dict(option.split("=", 1) for option in options)


def test_every_setting_that_a_manifest_names_exists() -> None:
    texts = [path.read_text(encoding="utf-8") for path in MANIFESTS]
    variables = {name for text in texts for name in re.findall(rf"\b{ENV_PREFIX}[A-Z_]*[A-Z]", text)}
    settings = {name for text in texts for name in re.findall(r"(?<![\w.])(?:compaction|log|s3)\.[a-z0-9.]+\b", text)}
    assert variables
    assert settings
    assert settings <= declared().keys()
    assert variables <= {setting.environment for setting in declared().values()}


def test_the_driver_may_make_executors_and_clean_up_behind_them() -> None:
    found = by_kind()
    pod = found["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    account = found["ServiceAccount"]["metadata"]["name"]
    assert pod["serviceAccountName"] == account
    assert found["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    (rule,) = found["Role"]["rules"]
    assert {"pods", "configmaps"} <= set(rule["resources"])
    assert {"create", "get", "list", "watch", "delete", "deletecollection"} <= set(rule["verbs"])


def test_a_driver_is_bounded_in_time_and_memory() -> None:
    job = by_kind()["CronJob"]["spec"]["jobTemplate"]["spec"]
    (driver,) = job["template"]["spec"]["containers"]
    assert job["activeDeadlineSeconds"] > 3600, "longer than the ids of a job's files are good"
    assert driver["resources"]["requests"].keys() == {"cpu", "memory"}
    assert driver["resources"]["limits"]["memory"] == "2Gi"
    assert conf(driver)["spark.driver.memory"] == "1g", "the rest is Python's"


def test_the_files_that_the_driver_starts_are_in_the_repository() -> None:
    (driver,) = by_kind()["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    for path in (driver["args"][-1], conf(driver)["spark.kubernetes.executor.podTemplateFile"]):
        assert path.startswith(IN_IMAGE)
        assert (REPOSITORY / path.removeprefix(IN_IMAGE)).is_file(), path
    assert int(conf(driver)["spark.executor.instances"]) > 0, "the executors' share of the I/O limit depends on it"
