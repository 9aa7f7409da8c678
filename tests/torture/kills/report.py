"""What a run with kills only prints."""

from __future__ import annotations

from tests.torture.kills.run import KillsOutcome
from tests.torture.report import print_reasons

OFFENCES_SHOWN, COPIES_SHOWN = 20, 3


def print_kills(outcome: KillsOutcome) -> None:
    """A row for each client, then why; offences, if any, with the seed last."""
    for name, why in outcome.missing.items():
        print(f"left out   {name}: {why}")
    injected = ", ".join(f"{kind} {count}" for kind, count in sorted(outcome.injected.items()))
    print(f"target     {outcome.target}")
    print(f"strikes    {injected}; {outcome.late} of them late, at most {outcome.latest_s:.1f} s")
    print("client     acknowledged  given up  lost  twice with bump  twice without  bumps  refused (batches)")
    for report, counts in zip(outcome.reports, outcome.counts, strict=True):
        refused = outcome.refusals.get(report.producer)
        print(
            f"{report.producer:10}{counts.acknowledged:13}{counts.given_up:10}{len(counts.lost):6}"
            f"{len(counts.twice_with_bump):17}{len(counts.twice_without):15}{len(report.started_over):7}"
            f"{sum(refused.values()) if refused else '-':>10}"
        )
    for report, counts in zip(outcome.reports, outcome.counts, strict=True):
        print(f"{report.producer}: retries {report.retries if report.retries >= 0 else '-'}")
        for reason, count in outcome.refusals.get(report.producer, {}).items():
            print(f"             refused {count:6}: {reason}")
        for (producer_id, epoch), count in sorted(counts.wrote_as.items()):
            print(f"             stored {count:7}: producer_id={producer_id} epoch={epoch}")
        print_reasons(report)
        for line in counts.twice_with_bump[:COPIES_SHOWN]:
            print(f"             {line}")
    for name, count in sorted(outcome.counters.items()):
        print(f"agents     {count:7}  {name.removeprefix('headrace_produce_').removesuffix('_total')}")
    verdict = outcome.verdict
    print(
        f"records    read {verdict.read:,} (of these {verdict.unacknowledged:,} that no client got)  lost"
        f" {len(verdict.lost)}  out of order {len(verdict.disordered)}  misplaced {len(verdict.misplaced)}"
        f"  gaps {len(verdict.gaps)}  readers disagree {len(outcome.disagreements)}"
    )
    for offence in outcome.offences[:OFFENCES_SHOWN]:
        print(f"  {offence}")
    if outcome.offences:
        print(f"FAILED: {len(outcome.offences)} offences (seed {outcome.plan.seed})")
    else:
        print(f"clean (seed {outcome.plan.seed})")
