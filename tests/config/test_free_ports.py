"""Ports that no program gets by chance."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headrace.config import free_ports as module
from headrace.config.free_ports import END, FIRST, free_ports


def test_ports_differ_and_are_free_and_outside_the_system_s_range() -> None:
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(FIRST <= port < END for port in ports)
    if first_given == 32_768:  # the default of Linux
        assert max(ports) < first_given
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    (taken, free) = free_ports(2)
    drawn = iter([taken, taken, free])
    monkeypatch.setattr(module.secrets, "randbelow", lambda _: next(drawn) - FIRST)
    with socket.create_server(("127.0.0.1", taken)):
        assert free_ports(1) == [free]


def test_a_machine_without_a_free_port_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (taken,) = free_ports(1)
    monkeypatch.setattr(module.secrets, "randbelow", lambda _: taken - FIRST)
    with socket.create_server(("127.0.0.1", taken)), pytest.raises(OSError, match="no free port"):
        free_ports(1)
