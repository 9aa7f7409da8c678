"""The page of metrics says what a real process shows."""

from __future__ import annotations

import pytest

from tests.deploy.live_scrape import COMMITTED, GROUP, RECORDS, TOPIC, Scrape
from tests.deploy.metrics_page import PAGE, DeclaredMetric, declared_metrics, page

NOT_HEADRACE = ("process_", "python_")
"""prometheus-client's own."""
OF_TABLES = "headrace_table_"
"""Shown by the role tables: tests/tables/test_follower.py."""


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_a_name_is_declared_with_one_meaning() -> None:
    names = [metric.name for metric in declared_metrics()]
    assert len(names) > 100
    assert len(names) == len(set(names))


@pytest.mark.slow
def test_a_process_shows_what_the_page_says(scrape: Scrape) -> None:
    shown = {name: family for name, family in scrape.families.items() if not name.startswith(NOT_HEADRACE)}
    declared = {metric.name: metric for metric in declared_metrics() if not metric.name.startswith(OF_TABLES)}
    assert shown.keys() - declared.keys() == set(), "shown and not on the page"
    assert declared.keys() - shown.keys() == set(), "on the page and not shown"
    for name, family in shown.items():
        labels = {tuple(sorted(sample.labels.keys() - {"le"})) for sample in family.samples}
        assert labels <= {tuple(sorted(declared[name].labels))}, name
        is_as_declared = DeclaredMetric(name, family.type, declared[name].labels, family.documentation.rstrip("."))
        assert is_as_declared == declared[name]


@pytest.mark.slow
def test_traffic_is_shown_by_topic_and_lag_by_group(scrape: Scrape) -> None:
    assert scrape.value("headrace_topic_received_records_total", topic=TOPIC) == RECORDS
    assert (scrape.value("headrace_topic_sent_records_total", topic=TOPIC) or 0) >= COMMITTED
    received = scrape.value("headrace_topic_received_bytes_total", topic=TOPIC) or 0
    assert received > RECORDS * len(b"record 0")
    lag = scrape.value("headrace_consumer_lag_records", group=GROUP, topic=TOPIC, partition="0")
    assert lag == RECORDS - COMMITTED
    assert scrape.value("headrace_consumer_lag_omitted") == 0


@pytest.mark.slow
def test_a_process_has_a_bounded_number_of_series(scrape: Scrape) -> None:
    """There are about sixty operations of the metastore: each bucket of theirs is sixty series of each process."""
    calls = scrape.families["headrace_metastore_call_seconds"].samples
    buckets = [sample for sample in calls if sample.labels["operation"] == "commit_files" and "le" in sample.labels]
    assert len(buckets) == 8
    assert sum(len(family.samples) for family in scrape.families.values()) < 1_700
