"""Starts processes of inline_agents.py, and adds up what they report.

Place: under load/benchmarks/inline_*.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from dataclasses import asdict, replace

from headrace.config.settings import Settings
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.postgres.store import PostgresMetastore
from load.workloads.committing import Worker
from load.workloads.inline_agents import AgentCounts, AgentsPlan


async def create_topic(url: str, partitions: int) -> tuple[int, str]:
    """Return number and id of a new topic."""
    store = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
    number, topic_id = await store.cluster.metadata_head(), uuid.uuid4()
    assert await store.topics.create_topics(number, [NewTopic(f"sent-{number}", topic_id, partitions, {})])
    await store.close()
    return number, str(topic_id)


def shared_out(plan: AgentsPlan, workers: int) -> list[AgentsPlan]:
    """Return a plan for each worker: agents and arrivals of `plan` are shared out."""
    plans, first = [], plan.first
    for number in range(workers):
        agents = plan.agents // workers + (number < plan.agents % workers)
        if agents:
            plans.append(replace(plan, first=first, agents=agents, mb_s=plan.mb_s * agents / plan.agents))
        first += agents
    return plans


def start_agents(plans: list[AgentsPlan]) -> list[Worker]:
    """Start a process for each plan; all are prepared and wait for a line (load.workloads.committing.tell)."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "load.workloads.inline_agents", json.dumps(asdict(plan))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for plan in plans
    ]
    for worker in workers:
        assert worker.stdout is not None
        if worker.stdout.readline() != "prepared\n":
            raise RuntimeError("a worker ended before it was prepared")
    return workers


def counts(workers: list[Worker]) -> AgentCounts:
    """Return the next report of all workers together. RuntimeError if one has ended."""
    found = AgentCounts()
    for worker in workers:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        if not line:
            raise RuntimeError("a worker ended")
        told = json.loads(line)
        found.add(AgentCounts(**told | {"refused": Counter(told["refused"])}))
    return found
