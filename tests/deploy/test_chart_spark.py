"""What the chart's drivers of Spark promise: their command, their account, and settings that no executor gets."""

from __future__ import annotations

import importlib.util

import pytest

from tests.deploy.rendering import NEWEST, environment, objects, one, pods

pytestmark = pytest.mark.needs("helm")


def test_spark_is_started_by_its_command() -> None:
    spec = pods(objects("full"))["CronJob/streams-spark"]
    (driver,) = spec["containers"]
    assert driver["command"] == ["headrace-spark-compaction"]
    assert importlib.util.find_spec("headrace.compactor.spark.application") is not None
    options = environment(driver)["PYSPARK_SUBMIT_ARGS"].split()
    assert options[-1] == "pyspark-shell"
    assert "spark.kubernetes.driver.pod.name=$(POD_NAME)" in options, "executors are deleted with their driver"
    for name in ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"):
        assert f"{name}=true" in options
    assert environment(driver)["HEADRACE_S3_ENDPOINT"] == "https://s3.example:9000"
    executor = one(objects("full"), "ConfigMap", "-spark")["data"]["executor.yaml"]
    assert "HEADRACE_S3_ENDPOINT" in executor
    assert "HEADRACE_METASTORE_URL" not in executor, "executors never connect to the metastore"


def test_spark_appends_to_tables_with_settings_that_no_executor_gets() -> None:
    spec = pods(objects("full"))["CronJob/streams-spark-tables"]
    (driver,) = spec["containers"]
    assert driver["command"] == ["headrace-spark-tables"]
    assert importlib.util.find_spec("headrace.spark.tables.application") is not None
    found = environment(driver)
    assert (found["HEADRACE_TABLES_CATALOG_NAME"], found["HEADRACE_TABLES_CATALOG_URI"]) == (
        *("lake", "https://catalog.example"),
    )
    assert "PYICEBERG_CATALOG__LAKE__TOKEN" in {each["name"] for each in driver["env"]}
    assert spec["serviceAccountName"] == "streams-spark"
    assert found["PYSPARK_SUBMIT_ARGS"].split()[-1] == "pyspark-shell"
    executor = one(objects("full"), "ConfigMap", "-spark")["data"]["executor.yaml"]
    assert "CATALOG" not in executor
    assert "CronJob/streams-spark-tables" not in pods(objects("minimal", NEWEST, "spark.enabled=true"))


def test_the_driver_may_make_executors_and_delete_them() -> None:
    found = objects("full")
    assert pods(found)["CronJob/streams-spark"]["serviceAccountName"] == "streams-spark"
    binding = one(found, "RoleBinding", "-spark")
    assert [subject["name"] for subject in binding["subjects"]] == ["streams-spark"]
    verbs: dict[str, set[str]] = {}
    for rule in one(found, "Role", binding["roleRef"]["name"])["rules"]:
        for resource in rule["resources"]:
            verbs.setdefault(resource, set()).update(rule["verbs"])
    every = {"create", "get", "list", "watch", "delete", "deletecollection"}
    assert verbs["pods"] >= every
    assert verbs["configmaps"] >= every
    assert "deletecollection" in verbs["services"], "it removes those of an earlier driver"


def test_a_driver_is_bounded_in_time_and_memory() -> None:
    job = one(objects("full"), "CronJob", "-spark")["spec"]["jobTemplate"]["spec"]
    assert job["activeDeadlineSeconds"] > 3600, "longer than the ids of a job's files are valid"
    (driver,) = job["template"]["spec"]["containers"]
    assert driver["resources"]["limits"]["memory"] == "2Gi"
    assert "--driver-memory 1g" in environment(driver)["PYSPARK_SUBMIT_ARGS"], "the rest is Python's"
