"""The demo's table and its checks."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from headrace.cli.bench.orders import percentile
from load.demo.consuming import Consumed
from load.demo.producing import Produced
from load.dev_server import DevServer


def report(console: Console, server: DevServer, produced: Produced, consumed: Consumed, expected: int) -> int:
    """Print what happened; 0 when every check passed."""
    stored = server.statistics()
    table = Table(title="Headrace demo", show_header=False)
    for name, value in (
        ("records", f"{expected:,}"),
        ("throughput", f"{produced.bytes / 1e6 / produced.seconds:.1f} MB/s over {produced.seconds:.1f} s (paced)"),
        ("acknowledged in", _latency(produced.ack_seconds, expected)),
        ("end to end", _latency(consumed.end_to_end_seconds, expected)),
        ("longest wait, the kill included", f"{max(produced.ack_seconds.values(), default=0.0):.1f} s"),
        ("segment files", f"{stored.files:,} ({stored.bytes / 1e6:.1f} MB)"),
        ("extents", f"{stored.extents:,}"),
        ("retries", f"{sum(produced.retries.values()):,} requests that librdkafka counts as such"),
        ("duplicates dropped", f"{server.metric('headrace_produce_duplicates_total'):,.0f} batches"),
        ("dead bytes", f"{stored.bytes - stored.live_bytes:,} (headers, footers and dropped batches)"),
    ):
        table.add_row(name, value)
    console.print(table)
    checks = {
        "every record was acknowledged": produced.acknowledged == expected and not produced.failed,
        "every record was read": len(consumed.seen) == expected,
        "none was read twice": consumed.records == expected and consumed.duplicates == 0,
        "order per key held": consumed.out_of_order == 0,
        "every value is what was sent (checksum)": consumed.checksum == produced.checksum,
    }
    for check, passed in checks.items():
        console.print(f"  [{'green' if passed else 'red'}]{'ok  ' if passed else 'FAIL'}[/] {check}")
    for failure in sorted(set(produced.failed)):
        console.print(f"  [red]not acknowledged: {failure}[/]")
    return 0 if all(checks.values()) else 1


def _latency(seconds: dict[int, float], expected: int) -> str:
    """Return the latency of records well before the kill; the cost of the kill is in a separate row."""
    undisturbed = [value for number, value in seconds.items() if number < expected * 2 // 5]
    return f"p50 {percentile(undisturbed, 50) * 1000:,.0f} ms, p99 {percentile(undisturbed, 99) * 1000:,.0f} ms"
