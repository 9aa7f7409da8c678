"""Counters taken from pages of /metrics."""

from __future__ import annotations

from headrace.cli.bench.window import StoreCounts, parse_counts

AGENT = """\
# HELP headrace_store_requests_total Object store requests, by outcome
headrace_store_requests_total{operation="put",result="ok"} 7.0
headrace_store_requests_total{operation="put",result="throttled"} 1.0
headrace_store_requests_total{operation="get",result="ok"} 3.0
headrace_store_requests_total{operation="list",result="ok"} 9.0
headrace_produce_flushes_total{reason="linger"} 4.0
headrace_produce_flushes_total{reason="bytes"} 2.0
headrace_produce_commit_seconds_count 5.0
headrace_produce_commit_seconds_sum 0.25
headrace_produce_bytes_total 1.2e+06
headrace_produce_early_flush_tokens +Inf
"""
COMPACTOR = 'headrace_store_requests_total{operation="put",result="ok"} 2.0\n'


def test_requests_of_all_processes_are_added_up() -> None:
    assert parse_counts([AGENT, COMPACTOR]) == StoreCounts(puts=10, gets=3, flushes=6, commits=5)
    assert parse_counts([]) == StoreCounts()


def test_only_the_difference_of_two_readings_counts() -> None:
    assert StoreCounts(10, 3, 6, 5).since(StoreCounts(4, 3, 1, 1)) == StoreCounts(6, 0, 5, 4)


def test_gauges_without_an_end_are_left_out() -> None:
    """A directory has no limit of early flushes."""
    assert parse_counts([AGENT, "headrace_early_flushes_saved +Inf\nheadrace_early_flush_rate_limit NaN\n"]).puts == 8
