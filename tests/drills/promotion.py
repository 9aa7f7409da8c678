"""An asynchronous standby that lacks the last seconds is promoted, while small files are in Postgres.

Place: run by `python -m tests.drills.operator_week`. Topics have low.latency.enable, so acknowledged records of those
seconds are in no bucket. One agent is killed in them: what only it had is nowhere.
Invariant: each acknowledged record that is missing afterwards is listed by `headrace audit --lost`; what an agent still
had in its memory is there again after `--put-back`.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from headrace.compactor.lost import SETTLE_MS
from tests.drills.clients import TOPIC, DrillClients
from tests.drills.recovery import begin_clients, seconds_to_recover
from tests.drills.restore import OperatorAtWork
from tests.drills.run import SETTINGS, ZONES
from tests.torture.cluster import TortureCluster
from tests.torture.drills import Drill

LOW_LATENCY: dict[str, object] = {"low.latency.enable": True}
BEFORE_SECONDS = 4.0


async def promotion_drill(write: Callable[[str], None]) -> bool:
    """Write the report; whether all that is missing was listed, and all else put back."""
    write(
        "== promoted_behind: an asynchronous standby is promoted; small files of the last seconds are in Postgres only"
    )
    with tempfile.TemporaryDirectory(prefix="headrace-drill-") as place:
        os.chmod(place, 0o711)  # for Postgres, which does not run as root
        settings = SETTINGS | LOW_LATENCY
        async with TortureCluster(Path(place), 1, settings=settings, zones=ZONES) as cluster:
            return await _Promotion(cluster, write).drill()


class _Promotion(OperatorAtWork):
    async def drill(self) -> bool:
        cluster, clients = self.cluster, DrillClients(self.cluster.bootstrap, idempotent=False)
        await asyncio.to_thread(begin_clients, cluster, clients, [TOPIC])
        cluster.drills.on_behind = self._lose_an_agent
        await cluster.drills.strike(Drill("promote_async", BEFORE_SECONDS))
        self.say("the standby, which lacks the last second, is the primary")
        await cluster.agents["agent-0"].start()
        recovered = await seconds_to_recover(cluster, clients)
        self.say(f"recovered without hands: {recovered is not None}")
        await asyncio.to_thread(clients.stop)
        await asyncio.sleep(SETTLE_MS / 1000)
        missing = set(clients.acknowledged) - set(await self.read(len(clients.acknowledged)))
        self.say(f"{len(clients.acknowledged)} acknowledged, {len(missing)} of them missing")
        for line in (await self.headrace("audit", "--lost", **cluster.operator_settings)).splitlines():
            self.say(f"headrace audit --lost: {line}")
        listed = json.loads(await self.headrace("audit", "--lost", "--json", **cluster.operator_settings))
        certain = sum(each["certain_records"] for each in listed["partitions"])
        nowhere = sum(each["last_offset"] - each["base_offset"] + 1 for each in listed["nowhere"])
        back = await self.headrace(
            "audit", "--lost", "--put-back", cluster.bootstrap.partition(",")[0], "--yes", **cluster.operator_settings
        )
        self.say(f"headrace audit --lost --put-back: {back.splitlines()[-1]}")
        left = set(clients.acknowledged) - set(await self.read(len(clients.acknowledged) + certain))
        self.say(f"{len(left)} missing, {nowhere} listed as nowhere")
        is_listed = 0 < len(missing) <= certain + nowhere and len(left) <= nowhere
        return recovered is not None and is_listed

    async def _lose_an_agent(self) -> None:
        await self.cluster.agents["agent-0"].kill()
        self.say("the standby has been behind for a second; SIGKILL: agent-0, then the primary")
