"""Attack one agent, one program after another: `python -m tests.hostile [NAME ...] [--checkout PATH] [--store STORE]`.

Each attack gets a fresh agent, and an ordinary producer and consumer at the same time. A module's `prepare`, if it has
one, first does what ordinary clients may do. Printed: resident memory at its peak above that before the attack, the
longest stall of the event loop, what the attack itself observed, and how the ordinary clients fared.
`--checkout` attacks the Headrace of another checkout, for figures of before and after. With `--low-latency` all topics
have low.latency.enable: small files go into the metastore first. With `--store` the bucket is on an object storage that
is started for each attack, in the place of a directory. An attack that could not run is reported and the others
follow; the exit status is 1 if one missed its goals or could not run.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from load.machine_state import machine_state
from tests.hostile import attacks
from tests.hostile.attacked_agent import AttackedAgent, Watch
from tests.hostile.bystanders import Bystanders
from tests.tools import why_missing
from tests.torture.servers import CREDENTIALS, NEEDS, STORES

MIB = 1024 * 1024
MEMORY_GOAL_BYTES = 64 * MIB
STALL_GOAL_SECONDS = 0.25
SETTINGS = {"group.initial.rebalance.delay.ms": 0}
"""So that each JoinGroup of a new group is answered at once."""
LOW_LATENCY = {"low.latency.enable": True}
MET, MISSED = "met ", "MISS"


def names() -> list[str]:
    """Every attack."""
    return sorted(module.name for module in pkgutil.iter_modules(attacks.__path__))


async def run(name: str, target: AttackedAgent, *, alone: bool) -> str:
    """One attack on a started agent; the line to print."""
    module = importlib.import_module(f"{attacks.__name__}.{name}")
    attack = module.attack
    if hasattr(module, "prepare"):
        await module.prepare(target)
    bystanders = Bystanders(target.bootstrap)
    if alone:
        return f"{name}: {await _attack(attack, target)}"
    await asyncio.to_thread(bystanders.start)
    try:
        told = await _attack(attack, target)
    finally:
        await asyncio.to_thread(bystanders.stop)
    return f"{name}: {told}; ordinary clients: {bystanders.verdict()}"


async def _attack(attack: object, target: AttackedAgent) -> str:
    assert callable(attack)
    async with Watch(target) as watch:
        observed = await attack(target)
    alive = "" if target.is_alive() else " THE AGENT ENDED"
    goals = (watch.grown_bytes <= MEMORY_GOAL_BYTES, watch.stall_seconds <= STALL_GOAL_SECONDS)
    met = MET if all(goals) else MISSED
    return (
        f"{met} memory {watch.grown_bytes / MIB:+.0f} MiB (idle {watch.idle_bytes / MIB:.0f})"
        f" stall {watch.stall_seconds * 1000:.0f} ms{alive}; {observed}"
    )


def _settings(name: str) -> dict[str, object]:
    """Return what the attack wants its agent to have."""
    found: dict[str, object] = getattr(importlib.import_module(f"{attacks.__name__}.{name}"), "SETTINGS", {})
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the attacks that are named, or all; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names()))
    parser.add_argument("--checkout", type=Path, help="another checkout, with its .venv, to attack its Headrace")
    parser.add_argument("--alone", action="store_true", help="no ordinary clients: a calmer measurement")
    parser.add_argument("--low-latency", action="store_true", help="low.latency.enable for all topics")
    parser.add_argument("--store", choices=STORES, help="the object storage of the bucket (a directory)")
    args = parser.parse_args(argv)
    if args.store:
        if reason := why_missing(NEEDS[args.store]):
            parser.error(reason)
        os.environ.update(CREDENTIALS)
    print(machine_state(), flush=True)
    common = SETTINGS | LOW_LATENCY if args.low_latency else SETTINGS
    status = 0
    for name in args.names or names():
        try:
            with AttackedAgent(args.checkout, common | _settings(name), args.store) as target:
                told = asyncio.run(run(name, target, alone=args.alone))
        except Exception:
            told = f"{name}: {MISSED} it could not run"
            traceback.print_exc()
        print(told, flush=True)
        status |= not told.startswith(f"{name}: {MET}")
    return status


if __name__ == "__main__":
    sys.exit(main())
