"""Wrong values are refused when the chart is rendered, and the message names the key."""

from __future__ import annotations

import pytest

from tests.deploy.rendering import CHART, NEWEST, VALUES, helm, objects, one, pods

pytestmark = pytest.mark.needs("helm")


def render(*settings: str, name: str = "minimal", version: str = NEWEST, upgrade: bool = False) -> tuple[int, str]:
    sets = [part for setting in settings for part in ("--set", setting)]
    flags = ["--is-upgrade"] if upgrade else []
    done = helm(
        "template", "hr", str(CHART), "--kube-version", version, "-f", str(VALUES / f"{name}.yaml"), *sets, *flags
    )
    return done.returncode, done.stderr if done.returncode else done.stdout


@pytest.mark.requirement("X9")
@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("agents.replica=3", "replica"),
        ("agents.replicas=0", "agents"),
        ("agents.replicas=three", "replicas"),
        (r"settings.linger\.mss=50", "linger.mss"),
        (r"settings.linger\.ms=0", "linger.ms"),
        (r"settings.linger\.ms=soon", "linger.ms"),
        (r"agents.settings.bucket=s3://other", "bucket"),
        (r"settings.num\.partitions=6", "num.partitions"),
        (r"cluster.settings.num\.partitions=0", "num.partitions"),
        (r"settings.delegation\.token\.secret\.key=x", "delegation.token.secret.key"),
        ("metastore.existingSecret=", "metastore.existingSecret"),
        ("bucket.url=", "bucket.url"),
        ("bucket.url=file:///data", "bucket"),
        ("bucket.url=az://account", "bucket"),
        ("bucket.url=gs://name,bucket.existingSecret=keys", "bucket.existingSecret"),
        ("cluster.id=short", "cluster"),
        ("image.digest=sha256:abc", "image"),
        ("metastore.parts.user=username,metastore.parts.password=password", "metastore.parts.host"),
        ("metastore.parameters=sslmode=require", "metastore.parameters"),
        ("metastore.parts.hostname=host", "hostname"),
        ("externalAccess.type=ingress", "externalAccess"),
        ("externalAccess.type=loadBalancer", "externalAccess.loadBalancer.host"),
        ("externalAccess.nodePort.port=70000", "externalAccess"),
        ("agents.maxSurge=0", "agents.maxSurge"),
        ("agents.podDisruptionBudget.maxUnavailable=0", "agents.podDisruptionBudget.maxUnavailable"),
        ("autoscaling.enabled=true,autoscaling.minReplicas=30", "autoscaling.minReplicas"),
        ("autoscaling.produceStage.enabled=true", "autoscaling.produceStage.enabled"),
        ("monitoring.podMonitor.enabled=true,monitoring.serviceMonitor.enabled=true", "monitoring.podMonitor"),
        ("monitoring.bearerTokenSecret.name=prometheus", "monitoring.bearerTokenSecret"),
        ("zone.from=podLabel,zone.label=rack", "zone.label"),
        ("console.enabled=true", "console.tokens.existingSecret"),
        (r"tables.enabled=true,tables.settings.tables\.catalog\.name=lake", "tables.image.repository"),
        ("tables.enabled=true,tables.image.repository=headrace-tables", "tables.settings"),
        (
            r"tables.enabled=true,tables.image.repository=a,tables.settings.tables\.catalog\.name=lake,"
            r"settings.tables\.catalog\.name=lake",
            "settings has tables.catalog.name",
        ),
        ("agents.processes=0", "processes"),
        ("agents.processes=2,externalAccess.type=nodePort", "agents.processes"),
        ("agents.extraEnv[0].name=HEADRACE_LINGER_MS,agents.extraEnv[0].value=5", "HEADRACE_LINGER_MS"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(setting: str, key: str) -> None:
    status, message = render(setting)
    assert status != 0
    assert key in message.replace("/", "."), message


@pytest.mark.requirement("X2")
def test_no_pod_but_the_balancer_can_forge_a_clients_address() -> None:
    """With PROXY protocol the one who connects says which address the client has, and ACLs have hosts."""
    proxy = "externalAccess.loadBalancer.proxyProtocol=true"
    balancer = "networkPolicy.proxies[0].ipBlock.cidr=10.0.0.0/16"
    lists_clients = "networkPolicy.clients[0].podSelector.matchLabels.app=orders"
    base = ("externalAccess.type=loadBalancer", "externalAccess.loadBalancer.host=kafka.example")
    for wrong, key in (
        ((proxy,), "networkPolicy.proxies"),
        ((proxy, lists_clients), "networkPolicy.proxies"),
        ((proxy, balancer, "networkPolicy.enabled=false"), "networkPolicy.enabled"),
        ((balancer,), "networkPolicy.proxies"),
    ):
        status, message = render(*base, *wrong)
        assert status != 0
        assert key in message
    for right in ((), (lists_clients,), (proxy, balancer)):
        status, message = render(*base, *right)
        assert status == 0, message


@pytest.mark.requirement("X2")
def test_sparks_account_is_limited_or_the_operator_says_that_it_is_not() -> None:
    status, message = render("spark.enabled=true", version="1.29.0")
    assert status != 0
    assert "spark.admissionPolicy" in message
    assert render("spark.enabled=true,spark.admissionPolicy=false", version="1.29.0")[0] == 0
    assert "ValidatingAdmissionPolicy" not in render("spark.enabled=true,spark.admissionPolicy=false")[1]
    assert render(version="1.29.0")[0] == 0, "without Spark there is no such account"


def test_zones_from_pod_labels_need_a_cluster_that_copies_them() -> None:
    status, message = render("zone.from=podLabel", version="1.34.0")
    assert status != 0
    assert "zone.from" in message


def test_a_secret_setting_comes_from_a_secret() -> None:
    reference = "agents.extraEnv[0].valueFrom.secretKeyRef"
    status, text = render(
        "agents.extraEnv[0].name=HEADRACE_DELEGATION_TOKEN_SECRET_KEY", f"{reference}.name=a,{reference}.key=b"
    )
    assert status == 0, text


def test_storage_is_formatted_at_the_first_install_only() -> None:
    assert "headrace, storage, format" in render()[1]
    assert "headrace, storage, format" not in render(upgrade=True)[1]
    assert "headrace, migrate" in render(upgrade=True)[1]


def test_agents_forward_before_clients_are_sent_to_one_address() -> None:
    """A Job of the upgrade that adds the load balancer; a new cluster has the setting from its start."""
    assert "advertised.shared=true, --brokers" in render(name="load-balancer", upgrade=True)[1]
    assert "advertised.shared=true, --brokers" not in render(name="load-balancer")[1]
    assert "advertised.shared=true, --brokers" not in render(upgrade=True)[1]


def test_the_id_of_a_new_cluster_is_drawn_and_never_replaces_one() -> None:
    """--ignore-formatted with a drawn id: storage of another cluster is refused, so that its data is safe."""
    drawn = {_format_arguments("minimal", "cluster.id=")[0] for _ in range(2)}
    assert len(drawn) == 1, "rendered once per test process"
    (argument,) = drawn
    assert len(argument.removeprefix("--cluster-id=")) == 22
    assert argument.removeprefix("--cluster-id=")[0].isalpha()
    assert "--ignore-formatted" in _format_arguments("minimal", "cluster.id=")


def _format_arguments(name: str, setting: str) -> list[str]:
    arguments: list[str] = pods(objects(name, NEWEST, setting))["Job/hr-headrace-format"]["containers"][0]["args"]
    return arguments


def test_hooks_need_nothing_that_the_release_creates_later() -> None:
    """A pre-install hook starts before the chart's account and ConfigMap exist."""
    found = objects("full")
    hooks = [item for item in found if "pre-install" in item["metadata"].get("annotations", {}).get("helm.sh/hook", "")]
    assert {item["kind"] for item in hooks} == {"ServiceAccount", "ConfigMap", "Job"}
    names = {item["metadata"]["name"] for item in hooks}
    outside = {"headrace-metastore", "headrace-bucket", "bucket-authority"}
    for key, spec in pods(hooks).items():
        assert spec["serviceAccountName"] in names, key
        maps = {volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume}
        assert maps <= names | outside
    weights = {item["kind"] + item["metadata"]["name"]: int(_weight(item)) for item in hooks}
    assert max(weights["ServiceAccountstreams-hooks"], weights["ConfigMapstreams-hooks"]) < weights["Jobstreams-format"]
    assert weights["Jobstreams-format"] < weights["Jobstreams-migrate"]
    migrate = one(found, "Job", "-migrate")["spec"]
    assert migrate["activeDeadlineSeconds"] == 600


def _weight(item: dict[str, dict[str, dict[str, str]]]) -> str:
    return item["metadata"]["annotations"]["helm.sh/hook-weight"]
