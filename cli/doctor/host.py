"""Judges this machine: file descriptors, queues of the kernel, CPUs and memory; and the settings that it was given.

Place: two areas of `headrace doctor`; `facts` looks, `judge` decides. Settings have a line only if the next release
refuses them.
Invariant: reads only, and changes no limit of this process.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.cli.doctor.findings import Area, Finding
from headrace.config.cluster_values import settings_that_go
from headrace.config.settings import Settings

AREA, SETTINGS_AREA = Area("host"), Area("settings")
DESCRIPTORS_BAD, DESCRIPTORS_WARN = 2_048, 16_384
BACKLOG_WARN = 1_024
"""The listener asks for as many; the kernel gives at most net.core.somaxconn."""
MEMORY_WARN_BYTES = 2 * 1024**3


class HostFacts(NamedTuple):
    """`descriptors`: the hard limit, to which processes raise theirs. `backlog` 0: unknown, as outside Linux."""

    descriptors: int
    backlog: int
    cpus: int
    memory_bytes: int


def facts() -> HostFacts:
    """Return the facts of this machine and this user."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    backlog = Path("/proc/sys/net/core/somaxconn")
    return HostFacts(
        descriptors=1 << 30 if hard == resource.RLIM_INFINITY else hard,
        backlog=int(backlog.read_text()) if backlog.exists() else 0,
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def judge(host: HostFacts) -> Iterator[Finding]:
    """One line for each resource."""
    found = f"a process may open {host.descriptors:,}"
    if host.descriptors < DESCRIPTORS_WARN:
        complain = AREA.bad if host.descriptors < DESCRIPTORS_BAD else AREA.warn
        yield complain("file descriptors", found, "raise the limit (ulimit -n, LimitNOFILE=): each client needs one")
    else:
        yield AREA.ok("file descriptors", found)
    if 0 < host.backlog < BACKLOG_WARN:
        to_do = f"sysctl net.core.somaxconn={BACKLOG_WARN}"
        yield AREA.warn("connection queue", f"net.core.somaxconn={host.backlog}: many clients at once wait", to_do)
    else:
        yield AREA.ok("connection queue", f"net.core.somaxconn={host.backlog or 'unknown'}")
    memory = f"{host.cpus} CPUs, {host.memory_bytes / 1024**3:.1f} GiB of memory"
    if host.memory_bytes < MEMORY_WARN_BYTES:
        yield AREA.warn("size", memory, "give an agent 2 GiB, or lower its buffers and caches (CONFIGURATION.md)")
    else:
        yield AREA.ok("size", memory)


def judge_settings(settings: Settings) -> Iterator[Finding]:
    """One line for each setting that the next release refuses, if file, environment or flags set it."""
    for each in settings_that_go(settings):
        found = f"{each.name}={each.value} applies in this release, and the next one refuses the name"
        yield SETTINGS_AREA.warn("goes", found, f"remove it (default {each.default}): {each.reason}")
