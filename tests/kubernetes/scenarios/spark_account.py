"""What Spark's account may do by the chart's admission policies, and what they refuse, each by its message.

Place: spark.py calls it, first until the policies take effect, then with a pod that Spark itself has made.
Invariant: one deviation from that pod at a time, so that a refusal can have only one reason. Attempts are dry runs on
the API server, which judges them as it judges others: nothing is changed, also if a policy admits what it must refuse.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import partial

from tests.kubernetes.scenarios.release import AGENTS, NAME, NAMESPACE, CommandError, Json, Release

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAME}-spark"
POLICY = "ValidatingAdmissionPolicy"
LABEL = "spark-app-selector"
POLICIES = (f"{NAMESPACE}-{NAME}-spark", f"{NAMESPACE}-{NAME}-spark-executors")
POD = "as-spark-makes-it"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

OF_SPARK = "what Spark's account creates or changes has the label spark-app-selector"
ONLY_OF_SPARK = "Spark's account changes and deletes only what has the label spark-app-selector"
EXECUTORS = "Spark's account creates executors only"
NO_TOKEN = "an executor has the agents' account, without a token of the API server"
IMAGE = "an executor runs spark.image and nothing else"
SECRETS = "an executor gets the Secret of the bucket and no other"
VOLUMES = "an executor has no volumes of Secrets or of its node"
NODE = "an executor shares nothing with its node"
PRIVILEGES = "an executor has no privileges"


def wait_until_enforced(release: Release) -> None:
    """Bindings take effect some seconds after they are made: until each policy has refused something."""
    unlabelled, bare = _pod({}), _pod({LABEL: "x"})
    for what, pod, message in (("the first", unlabelled, OF_SPARK), ("the executors'", bare, EXECUTORS)):
        release.wait_for(f"{what} policy is enforced", partial(_says, release, pod, message))
    for name in POLICIES:
        release.wait_for(f"types of {name} are checked", partial(_is_checked, release, name))


def _is_checked(release: Release, policy: str) -> bool:
    """Kubernetes' controller checks the expressions against the types that they judge."""
    status = json.loads(release.kubectl("get", "validatingadmissionpolicy", policy, "-o", "json")).get("status", {})
    assert not status.get("typeChecking", {}).get("expressionWarnings"), status
    return "typeChecking" in status


def check_removed(release: Release) -> None:
    """Policies are in no namespace: they must go with the release."""
    left = release.kubectl("get", "validatingadmissionpolicies,validatingadmissionpolicybindings", "-o", "name")
    assert not [line for line in left.splitlines() if line.partition("/")[2] in POLICIES], left


def check_refusals(release: Release, executor: Json) -> str:
    """`executor`: a pod that Spark has made, as the API server returned it."""
    own = as_made(executor)
    answer = _attempt(release, own)
    assert answer is None, f"a pod as Spark makes it is refused: {answer}"
    pods = deviations(own)
    for what, (pod, message) in pods.items():
        _refused(what, _attempt(release, pod), message)
    changes = _changes(release, own)
    return f"admitted to Spark's account: its own pod, its label, its end; refused: {', '.join([*pods, *changes])}"


def as_made(pod: Json) -> Json:
    """Return the object without what the API server, the scheduler and the kubelet have added; it stays
    unscheduled.
    """
    metadata = {"name": POD, "labels": dict(pod["metadata"]["labels"])}
    spec = copy.deepcopy(pod["spec"])
    spec.pop("nodeName", None)
    spec["schedulingGates"] = [{"name": "headrace.test/never"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def deviations(own: Json) -> dict[str, tuple[Json, str]]:
    """Return what -> (the pod with this one difference, the message of its refusal)."""

    def but(change: Callable[[Json, Json], object]) -> Json:
        pod = copy.deepcopy(own)
        change(pod["spec"], pod["spec"]["containers"][0])
        return pod

    def labelled(changes: dict[str, str | None]) -> Json:
        pod = copy.deepcopy(own)
        labels = pod["metadata"]["labels"] | changes
        pod["metadata"]["labels"] = {key: value for key, value in labels.items() if value is not None}
        return pod

    def volume(source: Json) -> Json:
        return but(lambda spec, _: spec["volumes"].append({"name": "more", **source}))

    def variable(source: Json) -> Json:
        return but(lambda _, container: container["env"].append({"name": "MORE", "valueFrom": source}))

    def rights(**changes: object) -> Json:
        return but(lambda _, container: container["securityContext"].update(changes))

    other = {"name": "other", "image": "busybox", "securityContext": own["spec"]["containers"][0]["securityContext"]}
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    secret = {"name": "metastore", "key": "password"}
    return {
        "a pod without its application's label": (labelled({LABEL: None}), OF_SPARK),
        "an agent": (labelled({"app.kubernetes.io/component": "agent"}), EXECUTORS),
        "another account": (but(lambda spec, _: spec.update(serviceAccountName="default")), NO_TOKEN),
        "a mounted token": (but(lambda spec, _: spec.update(automountServiceAccountToken=True)), NO_TOKEN),
        "another image": (but(lambda _, container: container.update(image="busybox")), IMAGE),
        "another image's container": (but(lambda spec, _: spec["containers"].append(other)), IMAGE),
        "another image's init container": (but(lambda spec, _: spec.update(initContainers=[other])), IMAGE),
        "a Secret's value": (variable({"secretKeyRef": secret}), SECRETS),
        "a whole Secret": (
            but(lambda _, container: container.update(envFrom=[{"secretRef": {"name": "metastore"}}])),
            SECRETS,
        ),
        "a Secret's volume": (volume({"secret": {"secretName": "metastore"}}), VOLUMES),
        "a host path": (volume({"hostPath": {"path": "/"}}), VOLUMES),
        "a token's volume": (volume({"projected": {"sources": [token]}}), VOLUMES),
        "a projected Secret": (volume({"projected": {"sources": [{"secret": {"name": "metastore"}}]}}), VOLUMES),
        "the node's network": (but(lambda spec, _: spec.update(hostNetwork=True)), NODE),
        "the node's processes": (but(lambda spec, _: spec.update(hostPID=True)), NODE),
        "a node's port": (but(lambda _, container: container.update(ports=[_HOST_PORT])), NODE),
        "a privileged container": (rights(privileged=True, allowPrivilegeEscalation=True), PRIVILEGES),
        "more rights by setuid": (rights(allowPrivilegeEscalation=True), PRIVILEGES),
        "a capability": (rights(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}), PRIVILEGES),
        "Docker's capabilities": (rights(capabilities={}), PRIVILEGES),
        "root": (rights(runAsUser=0, runAsNonRoot=False), PRIVILEGES),
        "root in the pod": (but(lambda spec, _: spec.update(securityContext={"runAsUser": 0})), PRIVILEGES),
        "no seccomp profile": (rights(seccompProfile={"type": "Unconfined"}), PRIVILEGES),
    }


_HOST_PORT = {"containerPort": 9999, "hostPort": 9999, "name": "host"}


def _changes(release: Release, own: Json) -> list[str]:
    """Updates and deletions, of others' objects and of a pod that Spark's account makes here."""
    agent = release.ready_agents()[0]["metadata"]["name"]
    label = json.dumps({"metadata": {"labels": {LABEL: "x"}}})
    settings = json.dumps({"metadata": {"labels": {LABEL: "x"}}, "data": {"agent.properties": "x"}})
    attempts = {
        "deleting an agent": ("delete", "pod", agent, "--wait=false"),
        "deleting all agents": ("delete", "--raw", f"{PODS}?labelSelector={AGENTS.replace('/', '%2F')}&dryRun=All"),
        "labelling an agent": ("patch", "pod", agent, "-p", label),
        "changing the agents' settings": ("patch", "configmap", NAME, "-p", settings),
        "deleting the agents' settings": ("delete", "configmap", NAME),
        "deleting a Service": ("delete", "service", NAME),
    }
    for what, command in attempts.items():
        _refused(what, _try(release, *command), ONLY_OF_SPARK)
    release.kubectl("create", "-f", "-", f"--as={ACCOUNT}", text=json.dumps(own))
    try:
        image = json.dumps({"spec": {"containers": [{"name": _name(own), "image": "busybox"}]}})
        removed = json.dumps({"metadata": {"labels": {LABEL: None}}})
        of_executors = {
            "changing an executor's image": (image, IMAGE),
            "taking an executor's label": (removed, OF_SPARK),
        }
        for what, (patch, message) in of_executors.items():
            _refused(what, _try(release, "patch", "pod", POD, "-p", patch), message)
        inactive = json.dumps({"metadata": {"labels": {"spark-exec-inactive": "true"}}})  # as Spark's driver does
        release.kubectl("patch", "pod", POD, "-p", inactive, f"--as={ACCOUNT}")
        release.kubectl("delete", "pod", POD, "--wait=false", f"--as={ACCOUNT}")
    finally:
        release.kubectl("delete", "pod", POD, "--ignore-not-found", "--force", "--grace-period=0")
    return [*attempts, *of_executors]


def _name(pod: Json) -> str:
    name: str = pod["spec"]["containers"][0]["name"]
    return name


def _pod(labels: dict[str, str]) -> Json:
    spec = {"containers": [{"name": "c", "image": "busybox"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "labels": labels}, "spec": spec}


def _attempt(release: Release, pod: Json) -> str | None:
    return _try(release, "create", "-f", "-", text=json.dumps(pod))


def _try(release: Release, *words: str, text: str | None = None) -> str | None:
    """Return what the API server says against it; None if it is admitted."""
    dry = () if "--raw" in words else ("--dry-run=server",)
    try:
        release.kubectl(*words, *dry, f"--as={ACCOUNT}", text=text)
    except CommandError as error:
        return str(error)
    return None


def _says(release: Release, pod: Json, message: str) -> bool:
    return message in (_attempt(release, pod) or "")


def _refused(what: str, answer: str | None, message: str) -> None:
    assert answer is not None, f"admitted to Spark's account: {what}"
    assert POLICY in answer, f"{what}: {answer}"
    assert message in answer, f"{what}: expected {message!r}: {answer}"
