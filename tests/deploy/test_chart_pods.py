"""What the chart's pods promise: settings that exist, secrets by reference, time to drain, the zone, the addresses."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.commands import COMMANDS
from headrace.cli.console.command import add_arguments
from headrace.config.declared import ENV_PREFIX, declared
from headrace.config.listeners import listeners, roles
from headrace.config.load import load
from tests.deploy.rendering import (
    CHART,
    NAMES,
    NEWEST,
    VALUES,
    WITHOUT_LABELS,
    environment,
    helm,
    objects,
    one,
    pods,
    rendered,
)

pytestmark = pytest.mark.needs("helm")
ADDRESSES = {
    "minimal": {"PLAINTEXT": "10.1.2.3:9092"},
    "full": {"PLAINTEXT": "10.1.2.3:9092"},
    "load-balancer": {"PLAINTEXT": "hr-headrace.streams.svc:9092", "EXTERNAL": "kafka.example:9092"},
    "node-port": {"PLAINTEXT": "10.1.2.3:9092", "EXTERNAL": "10.9.9.9:30092"},
    "secure": {"CLIENTS": "10.1.2.3:9092", "ADMIN": "127.0.0.1:9096"},
}
"""What agents advertise, by values file."""
PROPERTY = re.compile(r"^    ([a-z0-9.]+)=", re.M)


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def expanded(given: dict[str, str]) -> dict[str, str]:
    """Return the text with $(NAME) replaced, as Kubernetes does it."""
    return {key: re.sub(r"\$\((\w+)\)", lambda match: given[match[1]], value) for key, value in given.items()}


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_that_a_manifest_names_exists(name: str) -> None:
    variables = set(re.findall(rf"\b{ENV_PREFIX}[A-Z0-9_]*[A-Z]", rendered(name)))
    assert len(variables) > 5
    assert variables <= {setting.environment for setting in declared().values()}
    assert set(PROPERTY.findall(rendered(name))) <= declared().keys()


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_of_a_pod_are_accepted(name: str, tmp_path: Path) -> None:
    """File and environment together, as the process reads them."""
    found = objects(name)
    config = one(found, "ConfigMap", {"full": "streams"}.get(name, "hr-headrace"))
    for part in ("agent", "compactor", *(("tables",) if name == "full" else ())):
        path = tmp_path / f"{part}.properties"
        path.write_text(config["data"][f"{part}.properties"], encoding="utf-8")
        container = containers(pods(found)[f"Deployment/{config['metadata']['name']}-{part}"])[-1]
        given = environment(container) | {"POD_IP": "10.1.2.3", "HOST_IP": "10.9.9.9"}
        settings = load(path=path, environ=expanded(given))
        if part == "agent":
            found_addresses = {e.name: f"{e.host}:{e.port}" for e in listeners(settings).advertised}
            assert found_addresses == ADDRESSES[name] | {"INTERNAL": "10.1.2.3:9094"}
            assert listeners(settings).inter_broker == "INTERNAL"
            bound = {endpoint.host for endpoint in listeners(settings).serving if endpoint.name != "ADMIN"}
            assert bound == {"::"}
        assert settings.http_host == "::"
        assert (roles(settings) == {"tables"}) == (part == "tables")


def test_tables_are_kept_by_pods_with_another_image() -> None:
    assert not [item for item in objects("minimal") if item["metadata"]["name"].endswith("-tables")]
    sets = (
        "tables.enabled=true",
        "tables.image.repository=lake/headrace",
        r"tables.settings.tables\.catalog\.name=lake",
    )
    found = objects("minimal", NEWEST, *sets)
    (container,) = containers(pods(found)["Deployment/hr-headrace-tables"])
    assert container["image"].startswith("lake/headrace:")
    config = one(found, "ConfigMap", "hr-headrace")["data"]
    assert "process.roles=tables" in config["tables.properties"].splitlines()
    for part in ("agent", "compactor"):
        assert "lake/headrace" not in str(pods(found)[f"Deployment/hr-headrace-{part}"])
        assert "tables" not in config[f"{part}.properties"]
    assert one(found, "NetworkPolicy", "-tables")["spec"]["policyTypes"] == ["Ingress"]


@pytest.mark.parametrize("name", NAMES)
def test_the_addresses_of_ipv6_pods_are_accepted(name: str) -> None:
    """Kubernetes writes an address without brackets, whichever its family is."""
    found = pods(objects(name))
    (agent,) = [spec for key, spec in found.items() if key.startswith("Deployment/") and key.endswith("-agent")]
    given = environment(containers(agent)[-1]) | {"POD_IP": "2600:1f13::a", "HOST_IP": "2600:1f13::b"}
    listening = {key: value for key, value in expanded(given).items() if "LISTENER" in key or "KEYSTORE" in key}
    advertised = {e.name: (e.host, e.port) for e in listeners(load(environ=listening)).advertised}
    assert advertised["INTERNAL"] == ("2600:1f13::a", 9094)
    if name == "node-port":
        assert advertised["EXTERNAL"] == ("2600:1f13::b", 30092)
    if name != "load-balancer":
        assert advertised["CLIENTS" if name == "secure" else "PLAINTEXT"] == ("2600:1f13::a", 9092)


@pytest.mark.parametrize("host", ["::", "0.0.0.0"])
def test_pods_bind_the_address_of_listen_host(host: str) -> None:
    sets = ("console.enabled=true", "console.tokens.existingSecret=people", f"network.listenHost={host}")
    found = pods(objects("minimal", NEWEST, *sets))
    agent, compactor, console = (
        containers(found[f"Deployment/hr-headrace-{part}"])[-1] for part in ("agent", "compactor", "console")
    )
    shown = f"[{host}]" if ":" in host else host
    assert environment(agent)["HEADRACE_LISTENERS"].startswith(f"PLAINTEXT://{shown}:9092,INTERNAL://{shown}:9094")
    assert environment(agent)["HEADRACE_HTTP_HOST"] == environment(compactor)["HEADRACE_HTTP_HOST"] == host
    assert f"--listen={shown}:9646" in console["args"]


@pytest.mark.parametrize("name", NAMES)
def test_every_service_has_the_address_families_that_are_set(name: str) -> None:
    sets = ("console.enabled=true", "console.tokens.existingSecret=people")
    sets += ("monitoring.podMonitor.enabled=false", "monitoring.serviceMonitor.enabled=true")
    families = ("network.ipFamilyPolicy=RequireDualStack", "network.ipFamilies={IPv6,IPv4}")
    services = [each["spec"] for each in objects(name, NEWEST, *sets, *families) if each["kind"] == "Service"]
    assert len(services) >= 4
    assert {(each["ipFamilyPolicy"], *each["ipFamilies"]) for each in services} == {
        ("RequireDualStack", "IPv6", "IPv4")
    }
    assert not any("ipFamil" in key for each in objects(name) if each["kind"] == "Service" for key in each["spec"])


def test_a_console_reads_only_and_starts_with_what_the_command_takes() -> None:
    """Its words are parsed by the command's own parser; by default it changes nothing and people need a token."""
    sets = ("console.enabled=true", "console.tokens.existingSecret=people")
    found = objects("minimal", NEWEST, *sets)
    (container,) = containers(pods(found)["Deployment/hr-headrace-console"])
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(container["args"])
    assert not args.allow_changes
    service = one(found, "Service", "-console")
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    assert args.listen.endswith(f":{container['ports'][0]['containerPort']}")
    settings = load(environ=environment(container) | {"HEADRACE_METASTORE_URL": "postgresql://db/headrace"})
    assert settings.http_bearer_token_location in {
        f"{mount['mountPath']}/tokens" for mount in container["volumeMounts"]
    }
    assert args.agent_http == f"http://{one(found, 'Service', '-agents')['metadata']['name']}:9644"
    changing = containers(
        pods(objects("minimal", NEWEST, *sets, "console.allowChanges=true"))["Deployment/hr-headrace-console"]
    )
    assert "--allow-changes" in changing[0]["args"]


def test_several_agents_of_a_pod_have_different_ports() -> None:
    found = objects("minimal", NEWEST, "agents.processes=4")
    container = containers(pods(found)["Deployment/hr-headrace-agent"])[-1]
    assert container["args"][-2:] == ["--processes", "4"]
    ports = [port["containerPort"] for port in container["ports"]]
    assert sorted(ports) == [*range(9092, 9096), *range(9194, 9198), 9644]
    policy = one(found, "NetworkPolicy", "-agent")
    named = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert named == {port["name"] for port in container["ports"]}


@pytest.mark.parametrize("name", NAMES)
def test_a_variable_is_defined_before_it_is_used(name: str) -> None:
    """Kubernetes replaces $(NAME) only by a variable that comes earlier in the list."""
    for spec in pods(objects(name)).values():
        for container in containers(spec):
            known: set[str] = set()
            for entry in container.get("env", []):
                assert set(re.findall(r"\$\((\w+)\)", entry.get("value", ""))) <= known
                assert entry["name"] not in known, f"{entry['name']} twice"
                known.add(entry["name"])


@pytest.mark.parametrize("name", NAMES)
def test_secrets_are_only_references(name: str) -> None:
    found = objects(name)
    assert not [item for item in found if item["kind"] == "Secret"]
    for spec in pods(found).values():
        for container in containers(spec):
            for entry in container.get("env", []):
                if entry["name"].endswith("_LOCATION"):
                    assert entry["value"].startswith("/etc/"), "the path of a mounted Secret"
                elif entry.get("value", "").partition("?")[0] == "postgresql://":
                    assert not re.search("@|password", entry["value"]), "its parts are references"
                elif re.search(r"KEY|TOKEN|SECRET|PASSWORD|METASTORE_URL", entry["name"]):
                    assert entry["valueFrom"]["secretKeyRef"]["name"], entry["name"]


@pytest.mark.parametrize("name", NAMES)
def test_every_pod_is_unprivileged_and_bounded(name: str) -> None:
    for key, spec in pods(objects(name)).items():
        assert spec["enableServiceLinks"] is False, "service variables would be refused as settings"
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        if not key.startswith("CronJob/"):
            assert spec["automountServiceAccountToken"] is False
        for container in containers(spec):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert "memory" in container["resources"]["limits"]
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_exist(name: str) -> None:
    for spec in pods(objects(name)).values():
        for container in containers(spec):
            program, *arguments = container["command"]
            assert program in ("headrace", "headrace-spark-compaction", "headrace-spark-tables", "python3", "sh")
            if program == "headrace":
                assert arguments[0] in {command.name for command in COMMANDS}


@pytest.mark.parametrize(("grace_ms", "seconds"), [(15_000, 35), (90_500, 111)])
def test_kubernetes_waits_longer_than_an_agent_drains(grace_ms: int, seconds: int) -> None:
    found = objects("minimal", NEWEST, rf"agents.settings.shutdown\.grace\.ms={grace_ms}")
    spec = pods(found)["Deployment/hr-headrace-agent"]
    pause = int(spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert spec["terminationGracePeriodSeconds"] == seconds > pause + grace_ms / 1000


def test_the_zone_is_the_nodes_label() -> None:
    copied = pods(objects("minimal", NEWEST))["Deployment/hr-headrace-agent"]
    assert "initContainers" not in copied
    assert "metadata.labels['topology.kubernetes.io/zone']" in str(copied["containers"][0]["env"])
    assert not [item for item in objects("minimal", NEWEST) if item["kind"].startswith("ClusterRole")]
    read = pods(objects("minimal", WITHOUT_LABELS))["Deployment/hr-headrace-agent"]
    (init,) = read["initContainers"]
    assert init["command"][-1] == read["containers"][0]["args"][-1]
    assert "token" in {mount["name"] for mount in init["volumeMounts"]}
    assert "token" not in {mount["name"] for mount in read["containers"][0]["volumeMounts"]}
    role = one(objects("minimal", WITHOUT_LABELS), "ClusterRole")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]


@pytest.mark.parametrize(
    ("node", "line"),
    [
        ({"metadata": {"labels": {"zone": "eu-1a"}}}, "broker.rack=eu-1a"),
        ({"metadata": {}}, None),
        (OSError("no"), None),
    ],
)
def test_the_init_container_writes_the_zone(
    node: Any, line: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without the label, or one that cannot be read, leaves an agent without a zone."""
    script = (CHART / "files" / "node_zone.py").read_text(encoding="utf-8").removesuffix("main()\n")
    space: dict[str, Any] = {}
    exec(compile(script, "node_zone.py", "exec"), space)

    def read_node(name: str) -> Any:
        if isinstance(node, OSError):
            raise node
        return node

    space["read_node"] = read_node
    monkeypatch.setenv("NODE_NAME", "n1")
    monkeypatch.setattr("sys.argv", ["node_zone.py", "zone", str(tmp_path / "in"), str(tmp_path / "out")])
    (tmp_path / "in").write_text("linger.ms=50", encoding="utf-8")
    space["main"]()
    written = (tmp_path / "out").read_text(encoding="utf-8")
    assert written == "linger.ms=50\n" + (f"{line}\n" if line else "")
    assert load(path=tmp_path / "out").broker_rack == ("eu-1a" if line else None)


def test_an_empty_zone_is_no_zone() -> None:
    """The pod of a node without the label gets an empty variable."""
    assert load(environ={"HEADRACE_BROKER_RACK": ""}).broker_rack is None


@pytest.mark.parametrize("name", NAMES)
def test_the_probes_ask_what_they_should(name: str) -> None:
    """A liveness probe that depends on Postgres would restart all agents in an outage."""
    for key, spec in pods(objects(name)).items():
        if key.startswith("Deployment/"):
            (container,) = spec["containers"]
            paths = {probe: container[probe]["httpGet"]["path"] for probe in container if probe.endswith("Probe")}
            assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
            if not key.endswith("-console"):
                startup = container["startupProbe"]
                joins_s = declared()["initial.broker.registration.timeout.ms"].default / 1000
                assert startup["periodSeconds"] * startup["failureThreshold"] > joins_s


def test_behind_a_load_balancer_all_agents_have_one_address() -> None:
    """Also for clients in the cluster: the Service. New clusters get the setting from the hook's file."""
    found = objects("load-balancer")
    for name, key in (("hr-headrace", "agent"), ("hr-headrace", "compactor"), ("hr-headrace-hooks", "cluster")):
        (config,) = [item for item in found if item["kind"] == "ConfigMap" and item["metadata"]["name"] == name]
        assert "advertised.shared=true" in config["data"][f"{key}.properties"].splitlines()
    assert "advertised.shared" not in rendered("minimal")


def test_only_the_load_balancers_listener_reads_proxy_headers() -> None:
    (agent,) = pods(objects("load-balancer"))["Deployment/hr-headrace-agent"]["containers"]
    assert environment(agent)["HEADRACE_PROXY_PROTOCOL_LISTENERS"] == "EXTERNAL"
    without = ("externalAccess.loadBalancer.proxyProtocol=false", "networkPolicy.proxies=null")
    assert "PROXY_PROTOCOL" not in rendered("load-balancer", NEWEST, *without)
    assert "PROXY_PROTOCOL" not in rendered("minimal", NEWEST, "externalAccess.loadBalancer.proxyProtocol=true")


def test_one_agent_for_each_node_port() -> None:
    found = objects("node-port")
    spec = one(found, "Deployment", "-agent")["spec"]
    (term,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert one(found, "Service", "-external")["spec"]["externalTrafficPolicy"] == "Local"


@pytest.mark.needs("helm")
def test_clients_log_in_by_one_values_file() -> None:
    """Listener, key, first users, ADMIN and the client of `helm test` come from `security`."""
    found = objects("secure")
    agent = pods(found)["Deployment/hr-headrace-agent"]
    environ = environment(agent["containers"][0])
    assert environ["HEADRACE_LISTENERS"] == "CLIENTS://[::]:9092,INTERNAL://[::]:9094,ADMIN://127.0.0.1:9096"
    assert environ["HEADRACE_LISTENER_SECURITY_PROTOCOL_MAP"] == "CLIENTS:SASL_SSL"
    assert environ["HEADRACE_SSL_KEYSTORE_LOCATION"] == "/etc/headrace-keystore/tls-combined.pem"
    (job,) = [spec for name, spec in pods(found).items() if name.endswith("-format")]
    users = [each for each in job["containers"][0]["args"] if each.startswith("SCRAM-SHA-512=")]
    assert users == [
        f"SCRAM-SHA-512=[name={name},password-file=/run/headrace-users/{name}]" for name in ("admin", "orders")
    ]
    test = pods(found)["Pod/hr-headrace-test"]
    assert test["containers"][0]["args"][0].count("--command-config /etc/headrace-client/client.properties") == 4


@pytest.mark.needs("helm")
@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("security.keystore.existingSecret=", "security.keystore.existingSecret"),
        ("security.client.existingSecret=", "security.client.existingSecret"),
        ("security.firstUsers.existingSecret=", "security.firstUsers"),
        ("security.protocol=PLAINTEXT", "security.keystore.existingSecret has no effect"),
    ],
)
def test_half_a_secured_listener_is_refused(setting: str, key: str) -> None:
    done = helm(
        "template", "hr", str(CHART), "--kube-version", NEWEST, "-f", str(VALUES / "secure.yaml"), "--set", setting
    )
    assert done.returncode != 0
    assert key in done.stderr
