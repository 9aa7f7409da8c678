"""Reports of settings in Postgres: which count, for how long, and what they add up to."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from headrace.metastore.api.agents import METADATA_FORMAT, SEGMENT_KEYS
from headrace.metastore.api.cluster import SettingReport
from headrace.metastore.log.effective_configs import BROKER_RESOURCE
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.sessions import Session, join, move_time

pytestmark = pytest.mark.requirement("X10")
A, B = uuid.UUID(int=1), uuid.UUID(int=2)


def report(
    incarnation_id: uuid.UUID, process: str, *roles: str, node_id: int | None = None, **proposals: str
) -> SettingReport:
    values = {name.replace("_", "."): value for name, value in proposals.items()}
    return SettingReport(incarnation_id, process, roles, node_id, values)


async def test_different_proposals_are_a_dispute(metastore: PostgresMetastore) -> None:
    assert await metastore.cluster.setting_proposals() == ({}, {}, 0)
    await metastore.cluster.report_settings(report(A, "a-1", "broker", "controller", x_ms="1", y_ms="2"))
    await metastore.cluster.report_settings(report(B, "b-2", "compactor", x_ms="1", y_ms="3"))
    found = await metastore.cluster.setting_proposals()
    assert found.undecided == {"x.ms": {"1": ("a-1", "b-2")}, "y.ms": {"2": ("a-1",), "3": ("b-2",)}}
    assert found.disputed == {"y.ms": {"2": ("a-1",), "3": ("b-2",)}}
    assert found.role_counts == {"broker": 1, "controller": 1, "compactor": 1}


async def test_a_setting_with_a_value_is_decided(metastore: PostgresMetastore) -> None:
    await metastore.cluster.report_settings(report(A, "a-1", "broker", x_ms="1", y_ms="2"))
    record = ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name="x.ms", value="9")
    assert await metastore.cluster.append_records(await metastore.cluster.metadata_head(), [record])
    assert (await metastore.cluster.setting_proposals()).undecided == {"y.ms": {"2": ("a-1",)}}


async def test_a_report_counts_until_it_is_withdrawn_or_a_minute_old(
    metastore: PostgresMetastore, raw: Session
) -> None:
    await metastore.cluster.report_settings(report(A, "a-1", "broker", x_ms="1"))
    await metastore.cluster.report_settings(report(B, "b-2", "broker", x_ms="2"))
    await metastore.cluster.withdraw_settings(A)
    assert (await metastore.cluster.setting_proposals()).undecided == {"x.ms": {"2": ("b-2",)}}
    await move_time(raw, 50)
    await metastore.cluster.report_settings(report(A, "a-1", "broker", x_ms="1"))
    await move_time(raw, 70)
    assert (await metastore.cluster.setting_proposals()).undecided == {"x.ms": {"1": ("a-1",)}}, (
        "b-2 crashed a minute ago"
    )
    await metastore.cluster.report_settings(report(B, "b-2", "broker", x_ms="2"))
    assert (await metastore.cluster.setting_proposals()).role_counts == {"broker": 2}
    await move_time(raw, 7_200)
    await metastore.cluster.report_settings(report(A, "a-1", "broker", x_ms="1"))
    kept = await (await raw.execute("SELECT array_agg(process) FROM setting_reports")).fetchone()
    assert kept == (["a-1"],)


async def test_agents_without_a_report_are_counted(metastore: PostgresMetastore) -> None:
    first, second = await join(metastore), await join(metastore)
    assert (await metastore.cluster.setting_proposals()).unreported_agents == 2
    await metastore.cluster.report_settings(report(A, "a-1", "broker"))
    assert (await metastore.cluster.setting_proposals()).unreported_agents == 2, "it is not known which agent that is"
    await metastore.cluster.report_settings(report(A, "a-1", "broker", node_id=first.node_id))
    assert (await metastore.cluster.setting_proposals()).unreported_agents == 1
    await metastore.cluster.unregister_agent(*second)
    assert (await metastore.cluster.setting_proposals()).unreported_agents == 0


async def test_compactors_that_lack_a_level_are_known(metastore: PostgresMetastore, raw: Session) -> None:
    """Also those of a version that does not say what it supports; agents without that role do not compact."""
    await metastore.cluster.report_settings(report(A, "new-1", "broker", "compactor"))
    await metastore.cluster.report_settings(replace(report(B, "none-2", "spark"), features={METADATA_FORMAT: 3}))
    for number, roles in enumerate((["compactor"], ["broker"]), start=3):
        older = (uuid.UUID(int=number), f"old-{number}", roles)
        await raw.execute("SELECT report_settings(%s, %s, %s, NULL, '{}', '{}')", older)
    assert await metastore.cluster.compactors_without(SEGMENT_KEYS, 1) == ("none-2", "old-3")
    await raw.execute("SELECT report_settings(%s, 'new-1', '{compactor}', NULL, '{}', '{}')", (A,))
    assert await metastore.cluster.compactors_without(SEGMENT_KEYS, 1) == ("none-2", "old-3"), "a report is renewed"
    await metastore.cluster.withdraw_settings(B)
    assert await metastore.cluster.compactors_without(SEGMENT_KEYS, 1) == ("old-3",)
    assert await metastore.cluster.compactors_without(SEGMENT_KEYS, 2) == ("new-1", "old-3")
    await move_time(raw, 61)
    assert await metastore.cluster.compactors_without(SEGMENT_KEYS, 1) == ()
