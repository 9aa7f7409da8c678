"""Check who reaches what in the chart: the port that trusts PROXY headers, Spark's account, the metastore's
address.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from headrace.config.load import load
from tests.deploy.rendering import NEWEST, Object, environment, objects, one, pods

pytestmark = [pytest.mark.needs("helm"), pytest.mark.requirement("X2")]
PARTS = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "username", "PGPASSWORD": "password", "PGDATABASE": "dbname"}
"""Parts of the address in tests/deploy/values/load-balancer.yaml: libpq's variable -> key of the Secret."""


def rules_for(port: str, policy: Object) -> list[Any]:
    """Return who may connect to it; None: every pod."""
    ingress = policy["spec"]["ingress"]
    return [rule.get("from") for rule in ingress if port in {each["port"] for each in rule["ports"]}]


def test_only_the_balancer_reaches_the_port_that_trusts_its_headers() -> None:
    policy = one(objects("load-balancer"), "NetworkPolicy", "-agent")
    assert rules_for("external", policy) == [[{"ipBlock": {"cidr": "10.9.0.0/16"}}]]
    (clients,) = rules_for("kafka", policy)
    assert {"podSelector": {}} in clients, "clients in the cluster have the port without headers"


def test_without_headers_clients_reach_it_as_before() -> None:
    sets = ("externalAccess.loadBalancer.proxyProtocol=false", "networkPolicy.proxies=null")
    policy = one(objects("load-balancer", NEWEST, *sets), "NetworkPolicy", "-agent")
    assert rules_for("external", policy) == rules_for("kafka", policy)


def test_the_address_is_made_of_parts_that_need_no_encoding() -> None:
    """Every process that needs the metastore; the password stays in the Secret."""
    found = pods(objects("load-balancer"))
    seen = 0
    for key, spec in found.items():
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            variables = {entry["name"]: entry for entry in container.get("env", [])}
            if "HEADRACE_METASTORE_URL" not in variables:
                continue
            seen += 1
            own = {name: variables[name]["valueFrom"]["secretKeyRef"]["key"] for name in PARTS}
            assert own == PARTS, key
            settings = load(environ={"HEADRACE_METASTORE_URL": environment(container)["HEADRACE_METASTORE_URL"]})
            assert settings.metastore_url == "postgresql://?sslmode=verify-full"
    assert seen >= 3
    sets = ("metastore.parts.port=", "metastore.parts.password=", "metastore.parameters=")
    (agent,) = pods(objects("load-balancer", NEWEST, *sets))["Deployment/hr-headrace-agent"]["containers"]
    names = {entry["name"] for entry in agent["env"]}
    assert names & PARTS.keys() == {"PGHOST", "PGUSER", "PGDATABASE"}
    assert environment(agent)["HEADRACE_METASTORE_URL"] == "postgresql://"
    whole = {entry["name"] for spec in pods(objects("full")).values() for entry in spec["containers"][0].get("env", [])}
    assert not whole & PARTS.keys()


def _executor(found: list[Object]) -> Object:
    config = one(found, "ConfigMap", "-spark")
    template: Object = yaml.safe_load(config["data"]["executor.yaml"])
    return template


def test_spark_writes_to_its_scratch_volumes_only() -> None:
    found = objects("full")
    driver = pods(found)["CronJob/streams-spark"]
    for spec in (driver, _executor(found)["spec"]):
        (container,) = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        writable = {
            mount["name"]: mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")
        }
        assert writable == {"tmp": "/tmp", "work": "/opt/spark/work-dir"}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert all("sizeLimit" in volumes[name]["emptyDir"] for name in writable)


def test_sparks_account_is_limited_to_what_spark_makes() -> None:
    """The expressions are CEL, which a real API server judges in `make kubernetes`; here: whom and what they bind."""
    found = objects("full")
    policies = {item["metadata"]["name"]: item for item in found if item["kind"] == "ValidatingAdmissionPolicy"}
    bound = [item["spec"] for item in found if item["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert {spec["policyName"] for spec in bound} == policies.keys()
    for spec in bound:
        assert spec["validationActions"] == ["Deny"]
        assert spec["matchResources"]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "streams"}
    account = pods(found)["CronJob/streams-spark"]["serviceAccountName"]
    for policy in policies.values():
        assert policy["spec"]["failurePolicy"] == "Fail"
        (condition,) = policy["spec"]["matchConditions"]
        assert condition["expression"].endswith(f"'system:serviceaccount:streams:{account}'")
    changed = _matched(policies["streams-streams-spark"])
    role = [item for item in found if item["kind"] == "Role" and item["metadata"]["name"].endswith("-spark")]
    verbs = {"create": "CREATE", "patch": "UPDATE", "delete": "DELETE", "deletecollection": "DELETE"}
    granted = {
        (resource, verbs[verb])
        for rule in role[0]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb in verbs
    }
    assert granted <= changed, "the role grants a change that no policy judges"
    judged = {(resource, operation) for resource, operation in granted if resource == "pods" and operation != "DELETE"}
    assert judged == _matched(policies["streams-streams-spark-executors"]), "a patch could change an executor's image"


def _matched(policy: Object) -> set[tuple[str, str]]:
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    return {(resource, operation) for resource in rule["resources"] for operation in rule["operations"]}


def test_the_executors_that_spark_makes_are_what_the_policy_allows() -> None:
    found = objects("full")
    (policy,) = [item for item in found if item["metadata"]["name"] == "streams-streams-spark-executors"][:1]
    said = " ".join(each["expression"] for each in policy["spec"]["validations"])
    template, driver = _executor(found), pods(found)["CronJob/streams-spark"]["containers"][0]
    assert f"'{template['metadata']['labels']['app.kubernetes.io/component']}'" in said
    assert template["spec"]["automountServiceAccountToken"] is False
    (container,) = template["spec"]["containers"]
    secrets = {entry["valueFrom"]["secretKeyRef"]["name"] for entry in container["env"] if "valueFrom" in entry}
    assert all(f"secretKeyRef.name == '{name}'" in said for name in secrets)
    assert f"each.image == '{driver['image']}'" in said
    options = {entry["name"]: entry.get("value", "") for entry in driver["env"]}["PYSPARK_SUBMIT_ARGS"]
    assert f"spark.kubernetes.container.image={driver['image']}" in options
    account = re.search(r"executor.serviceAccountName=(\S+)", options)
    assert account is not None
    assert f"serviceAccountName == '{account[1]}'" in said
    assert all("emptyDir" in volume or "configMap" in volume for volume in template["spec"]["volumes"])
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    rights = container["securityContext"]
    assert (rights["allowPrivilegeEscalation"], rights["capabilities"]) == (False, {"drop": ["ALL"]})
    assert not {"seccompProfile", "appArmorProfile", "runAsNonRoot"} & rights.keys()


LOGIN = "https://reader:planted-registry-password@registry:8081"


def test_an_address_with_a_login_is_in_a_secret_only() -> None:
    """The ConfigMaps, the pods' specs and Spark's drivers refer to it."""
    sets = tuple(
        f"{place}.tables\\.schema\\.registry\\.url={LOGIN}" for place in ("tables.settings", "spark.tables.settings")
    )
    found = objects("full", NEWEST, *sets)
    secret = one(found, "Secret", "streams-logins")
    assert secret["stringData"] == {
        "tables.tables.schema.registry.url": LOGIN,
        "spark-tables.tables.schema.registry.url": LOGIN,
    }
    others = [item for item in found if item["kind"] != "Secret"]
    (of_hooks,) = [each for each in found if each["metadata"]["name"] == "streams-hooks-logins"]
    assert of_hooks["stringData"] == secret["stringData"], "hooks run before the release has its objects"
    assert "planted-registry-password" not in yaml.safe_dump_all(others)
    properties = one(found, "ConfigMap", "streams")["data"]["tables.properties"]
    line = "tables.schema.registry.url=${file:/etc/headrace-logins/tables.tables.schema.registry.url}"
    assert line in properties.splitlines()
    spec = pods(found)["Deployment/streams-tables"]
    (volume,) = [each for each in spec["volumes"] if each["name"] == "logins"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    assert "/etc/headrace-logins" in {each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}


def test_without_logins_there_is_no_secret_for_them() -> None:
    found = objects("full")
    assert [item for item in found if item["kind"] == "Secret" and item["metadata"]["name"].endswith("-logins")] == []


@pytest.mark.requirement("X15")
@pytest.mark.parametrize(
    ("sets", "given", "labelled"),
    [
        (
            ("bucket.url=az://account1/logs/a", "bucket.existingSecret=s", "bucket.endpoint=https://a.example"),
            {"HEADRACE_BUCKET", "HEADRACE_AZURE_ENDPOINT", "AZURE_STORAGE_KEY"},
            True,
        ),
        (
            ("bucket.url=abfss://logs@account1.dfs.core.windows.net/a", "bucket.existingSecret="),
            {"HEADRACE_BUCKET"},
            True,
        ),
        (
            (
                "bucket.url=gs://logs/a",
                "bucket.existingSecret=",
                "bucket.endpoint=https://g.example",
                "bucket.caConfigMap=ca",
            ),
            {"HEADRACE_BUCKET", "HEADRACE_GCS_ENDPOINT", "SSL_CERT_FILE"},
            False,
        ),
    ],
)
def test_a_bucket_on_another_cloud(sets: tuple[str, ...], given: set[str], labelled: bool) -> None:
    """Pods have the settings of their cloud and no keys of AWS; on Azure the label by which they get an identity."""
    account = r"serviceAccount.annotations.azure\.workload\.identity/client-id=id"
    rendered = objects("minimal", NEWEST, *sets, account)
    (service_account, *_) = [each for each in rendered if each["kind"] == "ServiceAccount"]
    assert service_account["metadata"]["annotations"]["azure.workload.identity/client-id"] == "id"
    seen = 0
    for name, spec in pods(rendered).items():
        names = {each["name"] for container in spec["containers"] for each in container.get("env", ())}
        if "HEADRACE_BUCKET" not in names:
            continue
        seen += 1
        prefixes = ("HEADRACE_BUCKET", "HEADRACE_S3", "HEADRACE_AZURE", "HEADRACE_GCS", "AWS_", "AZURE_", "SSL_")
        assert {each for each in names if each.startswith(prefixes)} == given, name
        kind, _, plain = name.partition("/")
        template = one(rendered, kind, plain)["spec"]["template"]
        assert template["metadata"]["labels"].get("azure.workload.identity/use") == ("true" if labelled else None)
    assert seen >= 3, "agents, compactors and hooks"
