"""How long applications take that wait for each answer: `python -m load.apps [--kafka JARS] [--before CHECKOUT]`.

Rows: 300 Celery tasks (one produce request each, awaited), and until a worker did them; 120 sends of 100 records by
kafkajs, one after another. Targets take turns, as in `headrace bench`. Medians of the rounds; the number of records
that the topic holds afterwards is checked. An application that is not installed is named.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.bench.target_spec import parse_target
from headrace.cli.bench.targets import MeasuredTarget, open_target
from load.machine_state import machine_state
from tests.tools import ALL, KAFKAJS

HERE = Path(__file__).parent
TASKS, SENDS, RECORDS = 300, 120, 100
PARTITIONS = 3
SECONDS_MAX = 240


def kafkajs(target: MeasuredTarget, topic: str) -> dict[str, float]:
    """Seconds of all sends. RuntimeError if records are missing."""
    _create(target.bootstrap, topic)
    command = ["node", str(HERE / "kafkajs_sends.cjs"), target.bootstrap, topic, str(SENDS), str(RECORDS)]
    environment = os.environ | {"KAFKAJS": str(KAFKAJS), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    sent = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, check=True, env=environment, cwd=HERE
    )
    _require(target.bootstrap, topic, (SENDS + 1) * RECORDS)
    return {f"kafkajs: {SENDS} sends of {RECORDS} records": float(sent.stdout)}


def celery(target: MeasuredTarget, topic: str, python: Path) -> dict[str, float]:
    """Seconds to send the tasks, and until a worker has done all of them."""
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder) / "done"
        done.touch()
        environment = os.environ | {"BROKER": f"confluentkafka://{target.bootstrap}", "DONE": str(done)}
        worker = subprocess.Popen(
            [str(python), "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "-Q", "celery", "-l", "error"],
            cwd=HERE, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _until_lines(done, 0)
            began = time.perf_counter()
            sent = subprocess.run(
                [str(python), "tasks.py", str(TASKS)],
                cwd=HERE, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=True,
            )  # fmt: skip
            _until_lines(done, TASKS + 1)
            whole = time.perf_counter() - began
        finally:
            worker.kill()
            worker.wait()
        if sorted(map(int, done.read_text().split())) != list(range(-1, TASKS)):
            raise RuntimeError("tasks are missing, or were done twice")
    return {f"Celery: {TASKS} tasks sent": float(sent.stdout), "Celery: until all were done": whole}


def _until_lines(path: Path, lines: int) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while len(path.read_text().split()) < lines:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{lines} tasks were not done in {SECONDS_MAX} s")
        time.sleep(0.01)


def _create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(SECONDS_MAX)


def _require(bootstrap: str, topic: str, records: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "counts"})
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, number), 30)[1] for number in range(PARTITIONS)]
    consumer.close()
    if sum(ends) != records:
        raise RuntimeError(f"records are missing or doubled: topic={topic} wanted={records} found={sum(ends)}")


async def run(specs: Sequence[str], jars: Path | None, python: Path | None, rounds: int) -> None:
    """Print a line for each run, then the medians."""
    found: dict[str, dict[str, list[float]]] = {}
    async with AsyncExitStack() as stack:
        targets = []
        for spec in map(parse_target, specs):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-apps-"))
            os.chmod(folder, 0o711)
            targets.append(await stack.enter_async_context(open_target(spec, Path(folder), jars)))
        for number in range(rounds):
            for target in targets:
                for row, seconds in (await asyncio.to_thread(_one_round, target, number, python)).items():
                    print(f"round {number + 1} {target.name:8} {row:36} {seconds:7.2f} s", flush=True)
                    found.setdefault(row, {}).setdefault(target.name, []).append(seconds)
    for row, by_target in found.items():
        print(f"{row:36}", *(f"{name} {statistics.median(times):.2f} s" for name, times in by_target.items()), sep="  ")


def _one_round(target: MeasuredTarget, number: int, python: Path | None) -> dict[str, float]:
    rows: dict[str, float] = {}
    if ALL["kafkajs"].is_present:
        rows |= kafkajs(target, f"sends-{number}")
    if python is not None:
        rows |= celery(target, f"tasks-{number}", python)
    return rows


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", type=Path, help="folder of Apache Kafka's jars")
    parser.add_argument("--before", help="another checkout of Headrace, with its .venv")
    parser.add_argument("--celery", type=Path, help="a Python with celery and kombu[confluentkafka]")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(machine_state(), flush=True)
    if not ALL["kafkajs"].is_present:
        print("kafkajs is not installed: `make tools`")
    if args.celery is None:
        print("Celery's rows need --celery")
    specs = [*(["kafka"] if args.kafka else []), "dev", *([f"before=headrace:{args.before}"] if args.before else [])]
    asyncio.run(run(specs, args.kafka, args.celery, args.rounds))


if __name__ == "__main__":
    main()
