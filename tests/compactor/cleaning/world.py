"""A compacted topic on a real Postgres: planner and cleaner run as the job loop would run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from headrace.compactor.cleaning.job import Cleaner, CleaningTerms
from headrace.compactor.cleaning.metrics import CleaningMetrics
from headrace.compactor.cleaning.planner import CleaningPlanner
from headrace.compactor.cleaning.policy import SparkLimits
from headrace.compactor.merge import MergeLimits
from headrace.jobs.kinds import CLEAN, COMPACT
from headrace.metastore.api.cleaning import CleaningQuery, CleaningState
from headrace.metastore.api.jobs import Job
from headrace.metastore.log.effective_configs import BROKER_RESOURCE
from headrace.metastore.log.kip631_records import TOPIC_RESOURCE, ConfigRecord
from headrace.storage.records.codec import Record, encode_batch
from tests.compactor.world import LEASE_MS, CompactionWorld
from tests.metastore.sessions import move_time, rows, session

TEST_KIND = "plan-cleaning-test"
BUFFER_BYTES = 1 << 20
KeyValue = tuple[str | None, str | None]


class CleaningWorld(CompactionWorld):
    """`hours` is how far the database's clock is ahead; records have its time."""

    hours = 0.0
    spark_limits = SparkLimits()
    """The same as the settings of planner and workers say."""

    async def wait(self, hours: float) -> None:
        """Let the database's clock, and that of records, move on."""
        self.hours += hours
        async with session(self.url) as raw:
            await move_time(raw, self.hours * 3600)
        self.service.database_now_ms = self.now_ms

    def now_ms(self) -> int:
        """Return the time of the database's clock in ms."""
        return self.clock.wall_ms() + round(self.hours * 3_600_000)

    async def send(self, key: int, *records: KeyValue) -> None:
        """One file with one batch of (key, value)."""
        await self.send_all({key: records})

    async def send_all(self, batches: Mapping[int, Sequence[KeyValue]]) -> None:
        """One file with a batch for each partition."""
        now_ms = self.now_ms()
        await self.commit(
            *(
                (
                    key,
                    encode_batch(
                        [
                            Record(number, now_ms, None if k is None else k.encode(), None if v is None else v.encode())
                            for number, (k, v) in enumerate(records)
                        ],
                        base_offset=0,
                    ),
                )
                for key, records in batches.items()
            )
        )

    async def seen(self, key: int, offset: int = 0) -> list[tuple[int, str | None, str | None]]:
        """(offset, key, value) of every record that a consumer gets from `offset` on."""
        return [
            (r.offset, r.key.decode() if r.key is not None else None, r.value.decode() if r.value is not None else None)
            for _, _, r in await self.records(key, offset)
        ]

    async def set_topic(self, topic: str, **configs: str) -> None:
        """Change configs of a topic, or of the cluster if it is empty."""
        kind = TOPIC_RESOURCE if topic else BROKER_RESOURCE
        head = await self.postgres.cluster.metadata_head()
        assert await self.postgres.cluster.append_records(
            head,
            [
                ConfigRecord(resource_type=kind, resource_name=topic, name=name.replace("_", "."), value=value)
                for name, value in configs.items()
            ],
        )

    async def raise_epoch(self, key: int, epoch: int) -> None:
        """Do what partition growth does."""
        async with session(self.url) as raw:
            await raw.execute("UPDATE partitions SET leader_epoch = %s WHERE partition_key = %s", (epoch, key))

    async def cleaning_rows(self) -> list[tuple[Any, ...]]:
        """cleaned_partitions as it is."""
        async with session(self.url) as raw:
            return await rows(raw, "SELECT * FROM cleaned_partitions")

    async def plan(self) -> None:
        """One run of the planner."""
        self.cleaning_registry = CollectorRegistry()
        planner = CleaningPlanner(self.postgres, self.spark_limits, CleaningMetrics(self.cleaning_registry), {})
        await self.run_job(TEST_KIND, planner.handle)

    async def plan_all(self) -> None:
        """Plan again after files of level 0 were merged, which comes first; each extent stays one."""
        await self.plan()
        while (merge := await self.postgres.jobs.claim_job("test", [COMPACT.name], LEASE_MS)) is not None:
            await self.run(merge, self.compactor(extent_bytes=1))
            await self.plan()

    async def clean(self, **over: Any) -> int:
        """Plan, then run the jobs that it made; how many."""
        await self.plan_all()
        count = 0
        while (job := await self.postgres.jobs.claim_job("test", [CLEAN.name], LEASE_MS)) is not None:
            await self.cleaner(**over).handle(job, self.lease(job))
            await self.postgres.jobs.finish_job(job.token)
            count += 1
        return count

    def cleaner(self, **over: Any) -> Cleaner:
        """A worker."""
        self.job_registry = CollectorRegistry()
        limits = MergeLimits(**{name: over.pop(name) for name in list(over) if name in MergeLimits.__slots__})
        has_spark = self.spark_limits.large_bytes > 0
        terms = CleaningTerms(limits, over.pop("buffer_bytes", BUFFER_BYTES), has_spark)
        parts = {"store": self.store, "metastore": self.postgres, "clock": self.clock, **over}
        return Cleaner(
            **parts,
            commit_shards=self.postgres.commit_shards,
            terms=terms,
            rng=self.rng,
            metrics=CleaningMetrics(self.job_registry),
        )

    async def state(self, key: int, min_lag_ms: int = 0) -> CleaningState:
        """Return what the policy decides by."""
        _, (found,) = await self.postgres.cleaning.describe_cleaning([CleaningQuery(key, min_lag_ms)])
        return found

    def shown(self, name: str, **labels: str) -> float:
        """A metric of the last planner or job."""
        for registry in (self.job_registry, self.cleaning_registry):
            value = registry.get_sample_value(f"headrace_log_cleaner_{name}", labels)
            if value:
                return value
        return 0.0

    async def _claimed(self, kind: str) -> Job:
        job = await self.postgres.jobs.claim_job("test", [kind], LEASE_MS)
        assert job is not None
        return job
