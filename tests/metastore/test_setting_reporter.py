"""X10: a process reports what its file says, and warns where the cluster has another value."""

from __future__ import annotations

import itertools
import logging
import random

import pytest
from prometheus_client import CollectorRegistry

from headrace.config.cluster_values import NEEDED_TO_DELETE, proposed
from headrace.config.settings import Settings
from headrace.metastore.setting_reporter import (
    LOOKS_TO_DECIDE,
    NO_COMPACTOR,
    REPORT_SECONDS,
    REPORTS_PER_LOOK,
    SettingReporter,
)
from headrace.storage.errors import UnavailableError
from load.contexts import a_context
from tests.manual_clock import ManualClock
from tests.nouns import nouns
from tests.scripted_settings import ScriptedSettings

LOOK_SECONDS = REPORTS_PER_LOOK * REPORT_SECONDS
_seeds = itertools.count()
pytestmark = pytest.mark.requirement("X10")


class Reporting:
    """One process."""

    def __init__(self, api: ScriptedSettings, clock: ManualClock, *roles: str, **settings: object) -> None:
        self.registry = CollectorRegistry()
        self.node_id: int | None = None
        self.reporter = SettingReporter(
            a_context(
                nouns(api),
                clock,
                settings=Settings(**settings),  # type: ignore[arg-type]
                rng=random.Random(next(_seeds)),
                registry=self.registry,
            ),
            roles or ("broker", "compactor"),
            lambda: self.node_id,
        )

    def metric(self, metric: str, /, **labels: str) -> float | None:
        return self.registry.get_sample_value(metric, labels)


@pytest.fixture
def api() -> ScriptedSettings:
    return ScriptedSettings()


async def test_a_file_that_differs_from_the_cluster_warns_once_and_shows_a_metric(
    api: ScriptedSettings, fake_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    api.values = proposed(Settings(log_retention_hours=720))
    process = Reporting(api, fake_clock, log_retention_hours=24)
    await process.reporter.start()
    await fake_clock.advance(5 * LOOK_SECONDS)
    told = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
    assert len(told) == 1
    assert "setting=log.retention.ms file=86400000 cluster=2592000000" in told[0]
    assert process.metric("headrace_setting_ignored", name="log.retention.ms") == 1
    assert len(process.reporter.warnings) == 1

    api.values["log.retention.ms"] = "86400000"
    await fake_clock.advance(LOOK_SECONDS)
    assert process.metric("headrace_setting_ignored", name="log.retention.ms") is None
    assert process.reporter.warnings == ()
    await process.reporter.stop()


async def test_processes_that_disagree_are_named_until_they_agree(
    api: ScriptedSettings, fake_clock: ManualClock
) -> None:
    one = Reporting(api, fake_clock, log_retention_hours=720)
    other = Reporting(api, fake_clock)
    await one.reporter.start()
    await other.reporter.start()
    await fake_clock.advance(LOOK_SECONDS)
    for process in (one, other):
        assert process.metric("headrace_setting_disputed", name="log.retention.ms") == 1
        (warning,) = process.reporter.warnings
        assert "2592000000=[" in warning
        assert "604800000=[" in warning
    await other.reporter.stop()
    await fake_clock.advance(LOOK_SECONDS)
    assert one.metric("headrace_setting_disputed", name="log.retention.ms") is None
    assert one.reporter.warnings == ()
    await one.reporter.stop()
    assert api.reports == {}


async def test_settings_without_a_value_are_named_after_a_while(
    api: ScriptedSettings, fake_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent of an older version does not report, so the controller waits for it."""
    process = Reporting(api, fake_clock)
    await process.reporter.start()
    assert process.metric("headrace_setting_undecided", name="file.delete.delay.ms") == 1
    assert process.metric("headrace_setting_undecided", name="linger.ms") is None
    await fake_clock.advance((LOOKS_TO_DECIDE - 1) * LOOK_SECONDS)
    assert process.reporter.warnings == ()
    await fake_clock.advance(LOOK_SECONDS)
    (warning,) = process.reporter.warnings
    assert f"settings={','.join(NEEDED_TO_DELETE)}" in warning
    assert "agents_without_report=0" in warning
    api.values = {name: proposed(Settings())[name] for name in NEEDED_TO_DELETE}
    await fake_clock.advance(LOOK_SECONDS)
    assert process.reporter.warnings == ()
    assert process.metric("headrace_setting_undecided", name="file.delete.delay.ms") is None
    await process.reporter.stop()


async def test_a_cluster_without_a_compactor_is_warned_but_not_in_its_first_seconds(
    api: ScriptedSettings, fake_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Reporting(api, fake_clock, "broker", "controller")
    await agent.reporter.start()
    assert agent.reporter.warnings == ()
    assert agent.metric("headrace_running_processes", role="compactor") == 0
    assert agent.metric("headrace_running_processes", role="broker") == 1
    await fake_clock.advance(LOOK_SECONDS)
    assert agent.reporter.warnings == (NO_COMPACTOR,)
    assert NO_COMPACTOR in caplog.text

    compactor = Reporting(api, fake_clock, "compactor")
    await compactor.reporter.start()
    await fake_clock.advance(LOOK_SECONDS)
    assert agent.reporter.warnings == ()
    assert agent.metric("headrace_running_processes", role="compactor") == 1
    for process in (agent, compactor):
        await process.reporter.stop()


async def test_an_outage_is_survived_and_a_node_id_is_reported_once_it_is_known(
    api: ScriptedSettings, fake_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    process = Reporting(api, fake_clock)
    api.error = UnavailableError("away")
    await process.reporter.start()
    assert "cannot report settings: error=away" in caplog.text
    assert "cannot look at what settings apply: error=away" in caplog.text
    api.error, process.node_id = None, 7
    await fake_clock.advance(REPORT_SECONDS)
    (report,) = api.reports.values()
    assert (report.node_id, report.roles) == (7, ("broker", "compactor"))
    assert report.proposals == proposed(Settings())
    api.error = UnavailableError("away")
    await process.reporter.stop()
    assert "cannot withdraw the report" in caplog.text


async def test_a_report_is_renewed_more_often_than_a_process_looks(
    api: ScriptedSettings, fake_clock: ManualClock
) -> None:
    process = Reporting(api, fake_clock)
    await process.reporter.start()
    api.asked.clear()
    await fake_clock.advance(120)
    assert api.asked == {"report_settings": 12, "cluster_configs": 4, "setting_proposals": 4}
    await process.reporter.stop()
