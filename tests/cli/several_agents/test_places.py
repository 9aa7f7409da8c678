"""The settings in which the agents of one command differ."""

from __future__ import annotations

import pytest

from headrace.cli.children import places
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings


def test_ports_and_node_ids_count_up_and_background_work_is_the_first_ones() -> None:
    settings = Settings(
        node_id=7,
        listeners="PLAINTEXT://0.0.0.0:9092,INTERNAL://[::1]:9192,EXTERNAL://127.0.0.1:0",
        advertised_listeners="PLAINTEXT://db.example.com:19092",
        process_roles="broker,compactor",
        inter_broker_listener_name="INTERNAL",
    )
    first, second, third = places(settings, 3)
    assert first["listeners"] == "PLAINTEXT://0.0.0.0:9092,EXTERNAL://127.0.0.1:0,INTERNAL://[::1]:9192"
    assert third["listeners"] == "PLAINTEXT://0.0.0.0:9094,EXTERNAL://127.0.0.1:0,INTERNAL://[::1]:9194"
    assert second["advertised.listeners"].startswith("PLAINTEXT://db.example.com:19093,")
    assert [place["node.id"] for place in (first, second, third)] == ["7", "8", "9"]
    assert [place.get("process.roles") for place in (first, second, third)] == [None, "broker", "broker"]


def test_without_node_id_each_leases_one() -> None:
    assert all("node.id" not in place for place in places(Settings(), 2))


def test_the_address_of_a_balancer_is_the_same_for_all_but_not_that_between_agents() -> None:
    settings = Settings(
        listeners="PLAINTEXT://0.0.0.0:9092,INTERNAL://0.0.0.0:9192",
        advertised_listeners="PLAINTEXT://lb:443,INTERNAL://10.0.0.7:9192",
        inter_broker_listener_name="INTERNAL",
        advertised_shared=True,
    )
    assert [place["advertised.listeners"] for place in places(settings, 2)] == [
        "PLAINTEXT://lb:443,INTERNAL://10.0.0.7:9192",
        "PLAINTEXT://lb:443,INTERNAL://10.0.0.7:9193",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(listeners="A://127.0.0.1:9092,B://127.0.0.1:9093"), "overlap"),
        (Settings(listeners="A://127.0.0.1:65535"), "exceed 65535"),
        (Settings(node_id=999_999_999), "node ids would exceed"),
        (Settings(process_roles="compactor"), "does not include broker"),
    ],
)
def test_what_does_not_fit_is_refused(settings: Settings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        places(settings, 2)
