"""What a torture run prints."""

from __future__ import annotations

from collections import Counter

from tests.torture.run import TortureOutcome
from tests.torture.writers import Report

OFFENCES_SHOWN = 20
REASONS_SHOWN = 3


def print_outcome(outcome: TortureOutcome) -> None:
    """Counts first; offences, if any, with the seed last."""
    for name, why in outcome.missing.items():
        print(f"left out   {name}: {why}")
    print(f"s3         {outcome.s3}")
    print(f"faults     {outcome.injected.total()}")
    for kind, count in sorted(outcome.injected.items()):
        print(f"           {count:5}  {kind}")
    print("clients          sent  acknowledged  given up  retries (confluent, java: records; else requests)")
    for report in outcome.reports:
        retries = str(report.retries) if report.retries >= 0 else "-"
        acknowledged, failed = len(report.acknowledged), len(report.failed)
        print(f"           {report.producer:10}{report.sent:7}{acknowledged:14}{failed:10}{retries:>9}")
        if report.implied:
            print(f"             {report.implied} of them acknowledged by a later batch's success, without an offset")
        if report.placeless > report.implied:
            print(
                f"             {report.placeless - report.implied} of them acknowledged as overtaken, without an offset"
            )
        print_reasons(report)
    print(f"           producer ids {outcome.producer_ids}, highest epoch {outcome.highest_epoch}")
    print("agents")
    for name, count in sorted(outcome.counters.items()):
        print(f"           {count:7}  {name.removeprefix('headrace_produce_').removesuffix('_total')}")
    verdict = outcome.verdict
    sent = sum(report.sent for report in outcome.reports)
    told = sum(len(report.acknowledged) for report in outcome.reports)
    print(f"records    sent {sent:,}  acknowledged {told:,}  read {verdict.read:,}", end="")
    print(f" (of these {verdict.unacknowledged:,} that no client got)")
    print(
        f"           lost {len(verdict.lost)}  duplicated {len(verdict.duplicated)}  out of order"
        f" {len(verdict.disordered)}  misplaced {len(verdict.misplaced)}  gaps {len(verdict.gaps)}"
        f"  consumers disagree {len(outcome.disagreements)}"
    )
    if outcome.plan.drills:
        listed = outcome.listed
        print(
            f"postgres   lost and listed {verdict.lost_and_listed}, lost with a killed agent {verdict.lost_with_agent},"
            f" snapshots held {outcome.snapshots_held}"
        )
        print(
            f"           listed by audit --lost: {listed.files:,} files, {listed.records:,} records,"
            f" {listed.certain:,} of them certain; offsets without bytes {listed.nowhere.total():,}"
        )
    print(
        f"files      {outcome.objects:,} objects, {outcome.named:,} named by the metastore;"
        f" {outcome.objects - outcome.named:,} are the sweeper's"
    )
    if outcome.offences:
        for offence in outcome.offences[:OFFENCES_SHOWN]:
            print(f"  {offence}")
        print(f"FAILED: {len(outcome.offences)} offences; replay the faults with SEED={outcome.plan.seed}")
    else:
        print(f"clean (seed {outcome.plan.seed})")


def print_reasons(report: Report) -> None:
    """Print why a writer began another epoch or producer id, and why it gave records up."""
    for reason, count in Counter(report.started_over).most_common(REASONS_SHOWN):
        print(f"             started over {count:2}: {reason[:100]}")
    for reason, count in Counter(report.failed.values()).most_common(REASONS_SHOWN):
        print(f"             given up {count:6}: {reason[:100]}")
