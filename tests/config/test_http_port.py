"""The default of http.port: an agent and a compactor on one host do not collide."""

from __future__ import annotations

from headrace.config.listeners import http_port
from headrace.config.settings import Settings


def test_an_agent_and_a_compactor_have_different_defaults() -> None:
    assert http_port(Settings()) == 9644
    assert http_port(Settings(process_roles="broker,compactor")) == 9644
    assert http_port(Settings(process_roles="compactor")) == 9645


def test_a_port_that_is_set_is_used() -> None:
    assert http_port(Settings(http_port=0)) == 0
    assert http_port(Settings(process_roles="compactor", http_port=9644)) == 9644
