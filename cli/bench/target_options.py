"""What a target's KEY=VALUE say besides settings: how many processes, which bucket, and how far away it is.

Place: read out of the words of a target by target_spec.py. Pure.
Invariant: a key that its kind of target does not have is a setting of what is started, and passed on as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.config.errors import ConfigError

PUT_DELAY, AGENTS, NODES = "put-delay-ms", "agents", "nodes"
BUCKET, S3 = "bucket", "s3"
PUT_MS, GET_MS, SIGMA, SEED = "put-ms", "get-ms", "sigma", "seed"
LATENCY = (PUT_MS, GET_MS, SIGMA, SEED)
OF_HEADRACE = frozenset({AGENTS, BUCKET, *LATENCY})
OF_DEV = OF_HEADRACE | {PUT_DELAY}
OF_KAFKA = frozenset({NODES})
DELAY_MS_MAX = 60_000
PROCESSES_MAX = 100


@dataclass(frozen=True, slots=True)
class S3Latency:
    """What each request waits: log-normal, with these medians and this standard deviation of the logarithm."""

    put_ms: float = 0
    get_ms: float = 0
    sigma: float = 0.5
    seed: int = 7


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Options of a target that the bench starts. `s3`: its bucket is an S3 server, this far away; None: a directory."""

    agents: int = 1
    nodes: int = 1
    put_delay_ms: int = 0
    s3: S3Latency | None = None


def read_options(given: Mapping[str, str], known: frozenset[str]) -> TargetOptions:
    """Read the keys in `known`; the others are settings. ConfigError for values out of range, or without effect."""
    own = {key: value for key, value in given.items() if key in known}
    if own.get(BUCKET, S3) != S3:
        raise ConfigError(f"the bucket of a target that the bench starts is a directory, or {BUCKET}={S3}")
    s3 = None
    if BUCKET in own:
        if PUT_DELAY in own:
            raise ConfigError(f"{PUT_DELAY} is for a directory; with {BUCKET}={S3} it is {PUT_MS}=N")
        s3 = S3Latency(
            put_ms=_number(own, PUT_MS, 0, DELAY_MS_MAX),
            get_ms=_number(own, GET_MS, 0, DELAY_MS_MAX),
            sigma=_number(own, SIGMA, S3Latency().sigma, 10),
            seed=_whole(own, SEED, S3Latency().seed, 0, 2**32),
        )
    elif useless := [key for key in LATENCY if key in own]:
        raise ConfigError(f"{', '.join(useless)}: only with {BUCKET}={S3}")
    return TargetOptions(
        agents=_whole(own, AGENTS, 1, 1, PROCESSES_MAX),
        nodes=_whole(own, NODES, 1, 1, PROCESSES_MAX),
        put_delay_ms=_whole(own, PUT_DELAY, 0, 0, DELAY_MS_MAX),
        s3=s3,
    )


def _whole(given: Mapping[str, str], key: str, default: int, least: int, most: int) -> int:
    text = given.get(key, str(default))
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ConfigError(f"{key} is not a whole number from {least} to {most}: {text}")
    return int(text)


def _number(given: Mapping[str, str], key: str, default: float, most: float) -> float:
    text = given.get(key, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        raise ConfigError(f"{key} is not a number from 0 to {most}: {text}")
    return value
