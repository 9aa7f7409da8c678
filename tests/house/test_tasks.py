"""Every task that the code creates is accounted for: it runs under the supervisor, or it cannot end unnoticed.

A task without either may end by a bug while the process continues: its lease is held, and its work is not done.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("agent", "cli", "client", "compactor", "jobs", "metastore", "protocol", "scan", "spark", "storage", "tables")
CREATING = {"create_task", "ensure_future"}

AWAITED = "the function that creates it waits for it, or cancels it before it returns"
SHARED = "callers wait for it, and get its error"
CATCHES = "its loop catches every exception, or ends with what it serves"
REPORTED = "its owner looks at its error when it ends"
LIBRARY = "headrace.client: an application runs it, without a supervisor; a bug in it is not reported yet"
SHORT = "one piece of work that ends by itself and leaves nothing to be done; the next occasion makes another"

ACCOUNTED = {
    "storage/dependency.py": {"_pause": AWAITED},
    "storage/objects/http_requests.py": {"value": SHARED},
    "storage/supervision.py": {"keep": "the supervisor"},
    "agent/cluster/controller/rounds.py": {"run": "Supervisor.attempt"},
    "agent/cluster/follower.py": {"_next_read": SHARED},
    "agent/cluster/membership.py": {"_pause": AWAITED, "controlled_shutdown": AWAITED},
    "agent/fetch/files/cache.py": {"_shared_load": SHARED},
    "agent/fetch/files/read.py": {"load_ahead": SHORT},
    "agent/fetch/index/feed.py": {"_pause": AWAITED},
    "agent/fetch/loss_notes.py": {"note": SHORT},
    "storage/insistent.py": {"start": SHORT},
    "agent/fetch/share/handlers.py": {"_return": SHORT},
    "agent/fetch/offsets/offset_requests.py": {"_begin_call": SHARED},
    "agent/fetch/waiters.py": {"wait": AWAITED},
    "agent/fetch/zone_cache/shared.py": {"read": SHARED},
    "agent/groups/streams/internal_topics.py": {"ask": CATCHES},
    "agent/peers/forwarding/links.py": {"_start": CATCHES, "forward": SHORT, "on_image": SHORT},
    "agent/groups/share/group_partitions.py": {"store": CATCHES},
    "agent/groups/held_groups.py": {"_loaded": SHARED, "_look_for_late_claims": SHORT, "_spawn": SHORT},
    "agent/listener/connection.py": {"_start": "one request: its connection answers it"},
    "agent/listener/connection_limits.py": {"begin": SHORT},
    "agent/listener/server.py": {"drain": AWAITED},
    "agent/peers/health_reports.py": {"reported": AWAITED},
    "agent/produce/pipeline.py": {
        "_spawn": "a bug in it stops produce, which /readyz says: what was buffered is unknown"
    },
    "agent/access/sasl/authentication.py": {"see": SHARED},
    "agent/access/sasl/oauthbearer.py": {"_refresh": SHARED},
    "tables/follower.py": {"take": REPORTED, "_within": AWAITED, "any_ends": AWAITED},
    "cli/bench/target_bench.py": {"__aenter__": REPORTED},
    "cli/bench/window.py": {"measure": AWAITED},
    "cli/children.py": {"_start": AWAITED},
    "cli/dev.py": {"_watch": AWAITED},
    "cli/process/serve.py": {"_until_stopped": AWAITED},
    "cli/several_agents.py": {"run": AWAITED},
    "client/consumer.py": {"start": LIBRARY},
    "client/fetching.py": {"run": LIBRARY},
    "client/membership.py": {"run": AWAITED},
    "client/producer.py": {"_new_sender": LIBRARY},
    "client/sending.py": {"run": LIBRARY},
    "jobs/runner.py": {"_run": AWAITED},
    "compactor/links/copying.py": {"step": AWAITED, "finish": AWAITED, "_wait": AWAITED, "_fetch_more": AWAITED},
    "compactor/sources.py": {"_begin": SHARED},
    "compactor/spark/application.py": {"drain": AWAITED},
    "compactor/spark/driver.py": {"in_group": AWAITED},
    "metastore/inline_store.py": {"_begin": SHARED},
    "metastore/life/watch.py": {"start": CATCHES},
    "metastore/postgres/standbys/standbys.py": {"commit_wait": AWAITED},
    "scan/read.py": {"_read_window": AWAITED},
    "tables/upkeep/jobs.py": {"keep": AWAITED},
    "storage/clock.py": {"within": AWAITED},
    "storage/objects/hedging.py": {"_race": AWAITED},
    "storage/objects/store.py": {"read_each": AWAITED},
}
"""Tasks by file and function. A loop that runs until the process ends belongs to Supervisor.keep."""


def creators(name: str, text: str) -> dict[str, set[str]]:
    """Return the creators by file: the functions that create a task."""
    found: dict[str, set[str]] = defaultdict(set)
    if not any(name in text for name in CREATING):
        return found
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            calls = (call.func for call in ast.walk(function) if isinstance(call, ast.Call))
            names = {
                called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "") for called in calls
            }
            if names & CREATING:
                found[name].add(function.name)
    return found


def test_no_task_ends_unnoticed() -> None:
    found: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            found |= creators(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    assert found == {name: set(functions) for name, functions in ACCOUNTED.items()}, (
        "a loop runs under Supervisor.keep; say here why another task cannot end unnoticed"
    )


def test_a_task_without_a_supervisor_is_found() -> None:
    planted = "class A:\n    def start(self):\n        self.task = asyncio.create_task(self.run())\n"
    assert creators("agent/planted.py", planted) == {"agent/planted.py": {"start"}}
