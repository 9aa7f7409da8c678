"""What a share group does in scenarios of raw requests, in words, to compare Headrace with Apache Kafka.

A scenario is a generator: it takes a Scene and yields rows (step, answer). scene.py and member.py send the requests;
differences.py says which rows are meant to differ. In Kafka's client the same is in ShareConsumerScenarios.java.

Place: run by test_share_scenarios.py.
Invariant: a scenario gives the same rows on each run on one server, also on a busy machine.
"""

from __future__ import annotations

from tests.compat.share_scenarios import acknowledging, deliveries, logs, offsets, sessions
from tests.compat.share_scenarios.scene import Row, Scenario, Scene
from tests.compat.share_scenarios.server import Server

SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        acknowledging.acknowledge_records,
        acknowledging.invalid_acknowledgements,
        acknowledging.records_of_another_member,
        acknowledging.fetch_with_acknowledgements,
        acknowledging.renewals,
        acknowledging.renewal_with_a_fetch,
        acknowledging.version_1,
        acknowledging.acquire_modes,
        acknowledging.fetch_limits,
        sessions.session_epochs,
        sessions.the_epoch_before,
        sessions.session_ends,
        sessions.session_on_two_connections,
        sessions.fetch_by_no_member,
        sessions.heartbeats,
        sessions.groups_of_other_types,
        deliveries.poison_batch,
        deliveries.poison_by_record_limit,
        deliveries.releases_until_the_limit,
        deliveries.sessions_close_until_the_limit,
        deliveries.connections_end_until_the_limit,
        deliveries.locks_end_until_the_limit,
        deliveries.leave_without_closing_the_session,
        deliveries.locks_of_a_partition,
        deliveries.every_second_record_is_released,
        deliveries.late_acceptance_of_what_another_accepted,
        offsets.offsets_of_unknown_groups,
        offsets.offsets_of_a_group_with_members,
        offsets.offsets_of_an_empty_group,
        offsets.offset_beyond_the_end,
        offsets.altered_offset_is_read,
        offsets.clients_that_left_still_ask,
        offsets.one_altered_partition,
        offsets.configs,
        logs.records_are_deleted,
        logs.topic_is_deleted,
        logs.partition_is_added,
        logs.isolation_changes,
        logs.open_transaction_next_to_another_topic,
    )
}


def rows(scenario: Scenario, server: Server) -> list[Row]:
    """Run the scenario on a server, in a new scene."""
    return list(scenario(Scene(server)))
