"""What is wrong with the cluster now, most urgent first: the doctor's findings, and what Kafka's protocol shows. Pure.

Place: under pages/overview.py.
Invariant: each line says what to do; without the metastore the doctor's part is missing, and the page says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.cli.console.cluster_reads import ClusterSummary
from headrace.cli.doctor.findings import Area, Finding, Level

AREA = Area("cluster")
NAMED_MAX = 10


def alarms(view: ClusterSummary, findings: Sequence[Finding], problems: Sequence[str]) -> list[Finding]:
    """Return the alarms of the cluster as seen, of the doctor, and of samples that could not be taken. Only what is
    not ok.
    """
    doctors = {finding.check for finding in findings}
    own = [finding for finding in _of_view(view) if finding.check not in doctors]
    sampling = [AREA.warn("samples", problem, "charts and lags are incomplete meanwhile") for problem in problems]
    wrong = [finding for finding in (*findings, *own, *sampling) if finding.level is not Level.OK]
    return sorted(wrong, key=lambda finding: (Level.BAD, Level.WARN, Level.UNKNOWN).index(finding.level))


def _of_view(view: ClusterSummary) -> Iterator[Finding]:
    fenced = [str(agent.node_id) for agent in view.agents if agent.state == "fenced"]
    live = [agent for agent in view.agents if agent.state == "live"]
    if fenced:
        to_do = "headrace cluster unregister -i ID, for those that will not return"
        yield AREA.warn("agents", f"{len(live)} are live; fenced: {', '.join(fenced)}", to_do)
    elif len(live) < 2:
        yield AREA.warn("agents", f"{len(live)} is live", "run at least two, in two zones")
    if view.quorum is not None and view.quorum.leader < 0:
        yield AREA.bad("controller", "no process is the active controller", "start an agent with the role controller")
    if view.without_leader:
        names = ", ".join(view.without_leader[:NAMED_MAX])
        found = f"{len(view.without_leader)} partitions have no leader: {names}"
        yield AREA.bad("partitions", found, "start agents: each serves every partition")
