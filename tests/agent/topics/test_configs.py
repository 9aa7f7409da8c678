"""Configs through Kafka's requests: what is shown acts, what is asked is judged, and nothing is dropped silently."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from kafka.protocol.admin import DescribeConfigsRequest, ListConfigResourcesRequest
from kio.schema.errors import ErrorCode

from headrace.agent.topics.configs.rules import ConfigResource, Operation, Wish, judge
from headrace.config.settings import Settings
from headrace.config.topic_configs import BROKER_DEFAULTS, TOPIC_CONFIGS
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.metastore.log.replay import apply
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.client_calls import call, captured_requests, read_reply, versions_of
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.topics.configs_world import (
    APPEND,
    BROKER,
    CLIENT_METRICS,
    DELETE,
    GROUP,
    LOGGER,
    NODE,
    SET,
    SUBTRACT,
    TOPIC,
    Change,
    ConfigsWorld,
)
from tests.manual_clock import ManualClock

# -- what is shown


@pytest.mark.requirement("C13.1")
@pytest.mark.parametrize("version", versions_of(32))
async def test_every_topic_config_is_shown_with_its_source(admin: ConfigsWorld, version: int) -> None:
    result = await admin.describe(TOPIC, "orders", version=version)
    assert result.error_code == 0
    shown = {config.name: config for config in result.configs}
    assert shown.keys() == TOPIC_CONFIGS.keys()
    own, default = shown["retention.ms"], shown["max.message.bytes"]
    assert (own.value, own.config_source, own.read_only, own.is_sensitive) == ("1000", 1, False, False)
    assert (default.value, default.config_source) == ("1048588", 5)
    assert [(s.name, s.value, s.source) for s in own.synonyms] == [
        ("retention.ms", "1000", 1),
        ("log.retention.ms", "604800000", 5),
    ]
    if version >= 3:
        assert (own.config_type, default.config_type, shown["cleanup.policy"].config_type) == (5, 3, 7)
        assert all(config.documentation for config in result.configs)
        assert shown["segment.index.bytes"].documentation.startswith(
            "Accepted, but extents take the place of log segments: "
        )
        assert shown["flush.ms"].documentation.startswith("Met by any value: ")
        assert shown["preallocate"].documentation.startswith("Refused: true, as ")
        assert shown["index.interval.bytes"].documentation.startswith("Refused: any value but the default, as ")
        assert shown["compression.type"].documentation.startswith("Works later: ")
        assert "cleanup.policy=compact" in shown["delete.retention.ms"].documentation


async def test_layers_have_kafkas_order(fake_clock: ManualClock) -> None:
    admin = ConfigsWorld(fake_clock, Settings(message_max_bytes=5_000_000))
    await admin.join()
    assert await admin.values(TOPIC, "orders", "max.message.bytes") == {"max.message.bytes": ("5000000", 4)}
    (done,) = await admin.change((BROKER, "", [("message.max.bytes", SET, "6000000")]))
    assert done.error_code == 0
    assert await admin.values(TOPIC, "orders", "max.message.bytes") == {"max.message.bytes": ("6000000", 3)}
    await admin.change((TOPIC, "orders", [("max.message.bytes", SET, "7000000")]))
    result = await admin.describe(TOPIC, "orders", "max.message.bytes")
    assert [(s.name, s.value, s.source) for s in result.configs[0].synonyms] == [
        ("max.message.bytes", "7000000", 1),
        ("message.max.bytes", "6000000", 3),
        ("message.max.bytes", "5000000", 4),
        ("message.max.bytes", "1048588", 5),
    ]


async def test_keys_synonyms_and_documentation_come_only_when_asked_for(admin: ConfigsWorld) -> None:
    result = await admin.describe(
        TOPIC, "orders", "retention.ms", "no.such", include_synonyms=False, include_documentation=False
    )
    (config,) = result.configs
    assert (config.name, config.synonyms, config.documentation) == ("retention.ms", [], None)


async def test_a_brokers_settings_are_shown_without_its_secrets(fake_clock: ManualClock) -> None:
    admin = ConfigsWorld(fake_clock, Settings(metastore_url="postgresql://user:password@host/db", linger_ms=25))
    await admin.join()
    result = await admin.describe(BROKER, NODE)
    assert result.error_code == 0
    shown = {config.name: config for config in result.configs}
    assert (shown["linger.ms"].value, shown["linger.ms"].config_source, shown["linger.ms"].read_only) == ("25", 4, True)
    assert shown["auto.create.topics.enable"].config_type == 1
    url = shown["metastore.url"]
    assert (url.value, url.is_sensitive, url.config_type) == (None, True, 9)
    assert [synonym.value for synonym in url.synonyms] == [None, None]
    assert BROKER_DEFAULTS.keys() <= shown.keys()
    assert not shown["log.retention.ms"].read_only
    assert not shown["compactor.threads"].read_only
    assert not shown["producer.id.expiration.ms"].read_only
    assert shown["log.retention.hours"].read_only


@pytest.mark.parametrize(
    ("url", "is_shown"),
    [
        ("postgresql://headrace@/postgres?host=%2Ftmp%2Fdata&port=4711", True),
        ("postgresql://headrace@localhost:5432/postgres", True),
        ("postgresql:///postgres?host=%2Ftmp&user=x&dbname=y", True),
        ("postgresql://headrace:secret@localhost/postgres", False),
        ("postgresql://headrace@localhost/postgres?password=secret", False),
        ("postgresql://headrace@db.example/postgres", False),
        ("postgresql://headrace@localhost/postgres?host=db.example", False),
        ("postgresql://headrace@/postgres?host=%2Ftmp,db.example", False),
        ("postgresql://headrace@localhost/postgres?passfile=%2Froot%2Fpgpass", False),
        ("postgresql:///postgres", False),
    ],
)
async def test_the_metastores_address_is_shown_only_if_it_is_local_and_without_a_password(
    url: str, is_shown: bool, fake_clock: ManualClock
) -> None:
    admin = ConfigsWorld(fake_clock, Settings(metastore_url=url))
    await admin.join()
    (shown,) = (await admin.describe(BROKER, NODE, "metastore.url")).configs
    assert (shown.value, shown.is_sensitive) == ((url, False) if is_shown else (None, True))
    assert [synonym.value is None for synonym in shown.synonyms] == [not is_shown] * 2


async def test_advertised_listeners_are_shown_as_kafkas_brokers_show_them(fake_clock: ManualClock) -> None:
    """This is what kafka-python's own suite asks for."""
    admin = ConfigsWorld(fake_clock, Settings(advertised_listeners="PLAINTEXT://127.0.0.1:0"))
    await admin.join()
    result = await admin.describe(BROKER, NODE, "advertised.listeners", include_synonyms=False)
    (shown,) = result.configs
    assert (shown.value, shown.config_source, shown.config_type) == ("PLAINTEXT://127.0.0.1:0", 4, 2)
    assert (shown.read_only, shown.is_sensitive, shown.synonyms) == (True, False, [])


async def test_a_broker_knows_only_its_own_settings(admin: ConfigsWorld) -> None:
    admin.api.add_agent(8)
    assert (await admin.describe(BROKER, "8")).error_code == ErrorCode.invalid_request
    assert (await admin.describe(BROKER, "9")).error_code == ErrorCode.invalid_request
    assert (await admin.describe(BROKER, "seven")).error_code == ErrorCode.invalid_request
    assert await admin.values(BROKER, "") == {}
    await admin.change((BROKER, "", [("log.retention.ms", SET, "5")]))
    assert await admin.values(BROKER, "") == {"log.retention.ms": ("5", 3)}


async def test_unknown_resources_have_their_own_errors(admin: ConfigsWorld) -> None:
    assert (await admin.describe(TOPIC, "nope")).error_code == ErrorCode.unknown_topic_or_partition
    assert (await admin.describe(GROUP, "")).error_code == ErrorCode.invalid_request
    assert (await admin.describe(BROKER, "9" * 5_000)).error_code == ErrorCode.invalid_request
    assert (await admin.describe(CLIENT_METRICS, "")).error_code == ErrorCode.invalid_request
    admin.api.fail_before["read_metadata"] = [UnavailableError("down")]
    assert (await admin.describe(TOPIC, "nope")).error_code == ErrorCode.request_timed_out


async def test_what_is_named_twice_is_described_not_even_once(admin: ConfigsWorld) -> None:
    """Five bytes of a request would be answered with thirty thousand, for each repetition in it."""
    named = DescribeConfigsRequest.DescribeConfigsResource
    resources = [named(resource_type=BROKER, resource_name=NODE, configuration_keys=None) for _ in range(1_000)]
    resources.append(named(resource_type=TOPIC, resource_name="orders", configuration_keys=None))
    message = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
    *twice, once = (await call(admin.describe_configs, message, 4)).results
    assert {(result.error_code, len(result.configs)) for result in twice} == {(ErrorCode.invalid_request, 0)}
    assert once.configs


# -- what is changed


@pytest.mark.requirement("C13.1")
@pytest.mark.parametrize("version", versions_of(44))
async def test_one_by_one(admin: ConfigsWorld, version: int) -> None:
    (done,) = await admin.change(
        (TOPIC, "orders", [("segment.ms", SET, " 7 "), ("retention.ms", DELETE, None)]), version=version
    )
    assert (done.error_code, done.resource_type, done.resource_name) == (0, TOPIC, "orders")
    assert admin.own() == {"segment.ms": "7"}


@pytest.mark.requirement("C13.1")
@pytest.mark.parametrize("version", versions_of(33))
async def test_all_at_once(admin: ConfigsWorld, version: int) -> None:
    done = await admin.replace(TOPIC, "orders", ("segment.ms", "7"), version=version)
    assert done.error_code == 0
    assert admin.own() == {"segment.ms": "7"}, "what is not named is gone"
    assert (await admin.replace(TOPIC, "orders", ("segment.ms", None))).error_code == ErrorCode.invalid_config


async def test_lists_grow_and_shrink(admin: ConfigsWorld) -> None:
    name = "follower.replication.throttled.replicas"
    await admin.change((TOPIC, "orders", [(name, SET, "0:1,1:1")]))
    (refused,) = await admin.change((TOPIC, "orders", [(name, APPEND, "1:1,2:x")]))
    assert "'0:1,1:1,2:x'" in refused.error_message
    (done,) = await admin.change((TOPIC, "orders", [(name, APPEND, "1:1")]))
    assert (done.error_code, admin.own()[name]) == (0, "0:1,1:1")
    await admin.change((TOPIC, "orders", [(name, SUBTRACT, "1:1,9:9,0:1")]))
    assert admin.own()[name] == ""
    await admin.change((TOPIC, "orders", [("cleanup.policy", SUBTRACT, "delete")]))
    assert admin.own()["cleanup.policy"] == "", "the default counts as what the list was"


async def test_what_a_throttled_reassignment_sets_is_stored_and_shown(admin: ConfigsWorld) -> None:
    """kafka-reassign-partitions --throttle: a rate for each broker, and the replicas of each topic."""
    rate, replicas = "leader.replication.throttled.rate", "leader.replication.throttled.replicas"
    done = await admin.change((BROKER, NODE, [(rate, SET, "1000")]), (TOPIC, "orders", [(replicas, SET, "0:1,1:2")]))
    assert [answer.error_code for answer in done] == [0, 0]
    assert await admin.values(BROKER, NODE, rate) == {rate: ("1000", 2)}
    assert await admin.values(TOPIC, "orders", replicas) == {replicas: ("0:1,1:2", 1)}
    assert {a.error_code for a in await admin.change((BROKER, NODE, [(rate, DELETE, None)]))} == {0}
    assert await admin.values(BROKER, NODE, rate) == {rate: (str(2**63 - 1), 5)}
    refused = await admin.change((TOPIC, "orders", [(replicas, SET, "all")]), (BROKER, NODE, [(rate, SET, "-1")]))
    assert {answer.error_code for answer in refused} == {ErrorCode.invalid_config}


async def test_subscriptions_to_client_metrics_are_stored_and_shown(admin: ConfigsWorld) -> None:
    change = [("interval.ms", SET, "5000"), ("match", SET, "client_id=a.*")]
    assert [a.error_code for a in await admin.change((CLIENT_METRICS, "m", change))] == [0]
    assert await admin.values(CLIENT_METRICS, "m") == {
        "interval.ms": ("5000", 7),
        "match": ("client_id=a.*", 7),
        "metrics": ("", 5),
    }


async def test_an_agent_shows_the_addresses_that_clients_are_sent_to(admin: ConfigsWorld) -> None:
    (address,) = admin.cluster.image.agents[int(NODE)].listeners
    expected = f"{address.name}://{address.host}:{address.port}"
    assert await admin.values(BROKER, NODE, "advertised.listeners") == {"advertised.listeners": (expected, 5)}


async def test_validation_alone_changes_nothing(admin: ConfigsWorld) -> None:
    before = list(admin.api.log)
    good, bad = await admin.change(
        (TOPIC, "orders", [("retention.ms", SET, "5")]),
        (TOPIC, "nope", [("retention.ms", SET, "5")]),
        validate_only=True,
    )
    assert (good.error_code, bad.error_code) == (0, ErrorCode.unknown_topic_or_partition)
    assert admin.api.log == before


REFUSED: dict[str, tuple[int, str, list[Change], ErrorCode]] = {
    "unknown topic": (TOPIC, "nope", [("retention.ms", SET, "5")], ErrorCode.unknown_topic_or_partition),
    "unknown config": (TOPIC, "orders", [("retention.hours", SET, "5")], ErrorCode.invalid_config),
    "bad value": (TOPIC, "orders", [("retention.ms", SET, "-2")], ErrorCode.invalid_config),
    "no value": (TOPIC, "orders", [("retention.ms", SET, None)], ErrorCode.invalid_config),
    "named twice": (TOPIC, "orders", [("segment.ms", SET, "5")] * 2, ErrorCode.invalid_request),
    "no name": (TOPIC, "orders", [("", SET, "5")], ErrorCode.invalid_request),
    "no such operation": (TOPIC, "orders", [("segment.ms", 4, "5")], ErrorCode.invalid_request),
    "append to a number": (TOPIC, "orders", [("segment.ms", APPEND, "5")], ErrorCode.invalid_config),
    "no such policy": (TOPIC, "orders", [("cleanup.policy", APPEND, "compacted")], ErrorCode.invalid_config),
    "unclean": (TOPIC, "orders", [("unclean.leader.election.enable", SET, "true")], ErrorCode.invalid_config),
    "tiering": (TOPIC, "orders", [("remote.storage.enable", SET, "TRUE")], ErrorCode.invalid_config),
    "one good, one bad": (
        TOPIC,
        "orders",
        [("retention.ms", SET, "5"), ("segment.ms", SET, "x")],
        ErrorCode.invalid_config,
    ),
    "a setting of files": (BROKER, "", [("linger.ms", SET, "5")], ErrorCode.invalid_request),
    "one broker's backoff": (BROKER, NODE, [("log.cleaner.backoff.ms", SET, "2")], ErrorCode.invalid_request),
    "one broker's tombstones": (
        BROKER,
        NODE,
        [("log.cleaner.delete.retention.ms", SET, "2")],
        ErrorCode.invalid_request,
    ),
    "Kafka's name of compactor.threads": (BROKER, NODE, [("log.cleaner.threads", SET, "2")], ErrorCode.invalid_config),
    "too many threads": (BROKER, "", [("compactor.threads", SET, "101")], ErrorCode.invalid_config),
    "no threads": (BROKER, "", [("compactor.threads", SET, "0")], ErrorCode.invalid_config),
    "one broker's default": (BROKER, NODE, [("log.retention.ms", SET, "5")], ErrorCode.invalid_request),
    "unknown broker": (BROKER, "99", [("max.connections", SET, "5")], ErrorCode.invalid_request),
    "unknown broker config": (BROKER, "", [("no.such.config", SET, "5")], ErrorCode.invalid_config),
    "a broker config without a use": (BROKER, NODE, [("num.io.threads", SET, "5")], ErrorCode.invalid_config),
    "client metrics": (CLIENT_METRICS, "m", [("interval.ms", SET, "5")], ErrorCode.invalid_config),
    "client metrics without a name": (CLIENT_METRICS, "", [("interval.ms", SET, "500")], ErrorCode.invalid_request),
    "client metrics by a shoe size": (CLIENT_METRICS, "m", [("match", SET, "shoe_size=4")], ErrorCode.invalid_config),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refused_resource_leaves_its_neighbour_alone(admin: ConfigsWorld, case: str) -> None:
    kind, name, changes, code = REFUSED[case]
    admin.api.add_topic("neighbour")
    refused, neighbour = await admin.change((kind, name, changes), (TOPIC, "neighbour", [("segment.ms", SET, "9")]))
    assert refused.error_code == code
    assert refused.error_message
    assert neighbour.error_code == 0
    assert (admin.own(), admin.own("neighbour")) == ({"retention.ms": "1000"}, {"segment.ms": "9"})


async def test_a_refused_change_leaves_a_line(admin: ConfigsWorld, caplog: pytest.LogCaptureFixture) -> None:
    await admin.change((TOPIC, "orders", [("segment.ms", SET, "x")]), (BROKER, "", [("compactor.threads", SET, "0")]))
    (line,) = [record for record in caplog.records if record.getMessage().startswith("request refused: ")]
    assert line.levelno == logging.WARNING
    assert "client_id=test left_out=0 reason=topic orders: " in line.getMessage()


async def test_refusals_say_why(admin: ConfigsWorld) -> None:
    (refused,) = await admin.change((TOPIC, "orders", [("cleanup.policy", SET, "compacted")]))
    assert "not one of compact, delete: compacted" in refused.error_message
    (refused,) = await admin.change((BROKER, "", [("linger.ms", SET, "30")]))
    assert "cannot change at run time" in refused.error_message
    for name, reason in (
        ("log.retention.hours", "is only for files: set log.retention.ms"),
        ("listeners", "cannot change at run time: an agent binds its listener when it starts"),
        ("num.io.threads", "is not used here: an agent uses one event loop"),
        ("offsets.topic.segment.bytes", "is not used here: there is no topic __consumer_offsets"),
        ("no.such.config", "unknown broker config: no.such.config"),
    ):
        (refused,) = await admin.change((BROKER, "", [(name, SET, "3")]))
        assert reason in refused.error_message
    (done,) = await admin.change((BROKER, "", [("log.segment.bytes", SET, "100")]))
    assert done.error_code == 0, "as a cluster-wide default of segment.bytes it is accepted"


async def test_background_work_is_paced_while_it_runs(admin: ConfigsWorld) -> None:
    names = {"compactor.threads": "4", "compactor.io.max.bytes.per.second": "5000", "compaction.interval.ms": "7"}
    (done,) = await admin.change((BROKER, "", [(name, SET, value) for name, value in names.items()]))
    assert done.error_code == 0
    assert await admin.values(BROKER, "") == {name: (value, 3) for name, value in names.items()}
    assert (await admin.values(BROKER, NODE, *names)) == {name: (value, 3) for name, value in names.items()}


async def test_an_agents_background_work_has_its_own_pace(admin: ConfigsWorld) -> None:
    names = {"compactor.threads": "4", "log.cleaner.io.max.bytes.per.second": "5000"}
    (done,) = await admin.change((BROKER, NODE, [(name, SET, value) for name, value in names.items()]))
    assert done.error_code == 0
    assert await admin.values(BROKER, "") == {}
    assert (await admin.values(BROKER, NODE, *names)) == {name: (value, 2) for name, value in names.items()}


async def test_a_resource_named_twice_is_refused_both_times(admin: ConfigsWorld) -> None:
    changes: list[Change] = [("segment.ms", SET, "9")]
    answers = await admin.change((TOPIC, "orders", changes), (TOPIC, "orders", changes))
    assert [answer.error_code for answer in answers] == [ErrorCode.invalid_request] * 2


async def test_what_is_so_already_is_not_appended(admin: ConfigsWorld) -> None:
    before = len(admin.api.log)
    (done,) = await admin.change((TOPIC, "orders", [("retention.ms", SET, "1000"), ("segment.ms", DELETE, None)]))
    assert done.error_code == 0
    assert len(admin.api.log) == before


async def test_a_changed_head_is_judged_again(admin: ConfigsWorld) -> None:
    def race() -> None:
        admin.api.append(ConfigRecord(resource_type=TOPIC, resource_name="orders", name="cleanup.policy", value=""))

    admin.api.before_append = race
    (done,) = await admin.change((TOPIC, "orders", [("cleanup.policy", APPEND, "delete")]))
    assert done.error_code == 0
    assert admin.api.calls["append_records"] == 2
    assert admin.own()["cleanup.policy"] == "delete", "appended to what the other one left"


async def test_a_lost_answer_is_looked_up(admin: ConfigsWorld) -> None:
    admin.api.fail_after["append_records"] = [OutcomeUnknownError("lost")]
    (done,) = await admin.change((TOPIC, "orders", [("segment.ms", SET, "9")]))
    assert done.error_code == 0
    assert admin.api.calls["append_records"] == 1


async def test_an_unreachable_metastore_times_out(admin: ConfigsWorld) -> None:
    admin.api.fail_before["append_records"] = [UnavailableError("down")]
    good, bad = await admin.change(
        (TOPIC, "orders", [("segment.ms", SET, "9")]), (TOPIC, "nope", [("segment.ms", SET, "9")])
    )
    assert good.error_code == ErrorCode.request_timed_out
    assert bad.error_code == ErrorCode.unknown_topic_or_partition


async def test_log_levels_are_this_agents_own(admin: ConfigsWorld) -> None:
    logger = logging.getLogger("headrace.agent.test_admin_configs")
    (done,) = await admin.change((LOGGER, NODE, [(logger.name, SET, "debug")]))
    assert done.error_code == 0
    assert logger.level == logging.DEBUG
    assert (await admin.values(LOGGER, NODE))[logger.name] == ("DEBUG", 6)
    refused = await admin.change((LOGGER, NODE, [(logger.name, SET, "loud")]))
    refused += await admin.change((LOGGER, NODE, [("headrace.agent.nobody", SET, "INFO")]))
    refused += await admin.change((LOGGER, NODE, [("root", DELETE, None)]))
    refused += await admin.change((LOGGER, "8", [(logger.name, SET, "INFO")]))
    assert all(answer.error_code for answer in refused)
    await admin.change((LOGGER, NODE, [(logger.name, DELETE, None)]))
    assert logger.level == logging.NOTSET


# -- the rest


@pytest.mark.parametrize(
    ("version", "kinds", "expected"),
    [
        (0, [], [("m", CLIENT_METRICS)]),
        (1, [], [("orders", TOPIC), (NODE, BROKER), (NODE, LOGGER), ("m", CLIENT_METRICS), ("g", GROUP)]),
        (1, [GROUP, CLIENT_METRICS], [("m", CLIENT_METRICS), ("g", GROUP)]),
    ],
)
async def test_resources_are_listed(
    admin: ConfigsWorld, version: int, kinds: list[int], expected: list[tuple[str, int]]
) -> None:
    await admin.change((GROUP, "g", [("consumer.session.timeout.ms", SET, "50000")]))
    await admin.change((CLIENT_METRICS, "m", [("interval.ms", SET, "5000")]))
    message = ListConfigResourcesRequest(resource_types=kinds)
    answer = await call(admin.list_resources, message, version)
    found = [(r.resource_name, getattr(r, "resource_type", CLIENT_METRICS)) for r in answer.config_resources]
    assert (answer.error_code, found) == (0, expected)
    message = ListConfigResourcesRequest(resource_types=[99])
    assert (await call(admin.list_resources, message, 1)).error_code == ErrorCode.unsupported_version


async def test_what_real_clients_sent_is_answered(admin: ConfigsWorld) -> None:
    for handler, api_key in ((admin.describe_configs, 32), (admin.alter_configs, 33), (admin.incremental, 44)):
        for label, request in captured_requests(api_key):
            answer = read_reply(request, await handler(request))
            for result in getattr(answer, "results", None) or answer.responses:
                assert result.error_code in (0, 3, 40, 42), (label, result)
    for _, request in captured_requests(74):
        assert read_reply(request, await admin.list_resources(request)).error_code == 0


CONFIGS = EffectiveConfigs(Settings())
names = st.sampled_from([*TOPIC_CONFIGS, "unknown"])
texts = st.one_of(st.none(), st.sampled_from(["", "1", "-1", "true", "delete", "gzip", "0.5"]), st.text(max_size=5))
wishes = st.lists(st.builds(Wish, names, st.integers(-1, 5), texts), max_size=4)


@hypothesis_settings(max_examples=200)
@given(wishes)
def test_what_is_accepted_is_valid_and_done_at_once(wanted: list[Wish]) -> None:
    """A second judgement finds nothing left to do, but for what adds to a list or takes from it."""
    api = FakeClusterApi(ManualClock())
    api.add_topic("t")
    image = apply(MetadataImage(), api.log)
    judged = judge(CONFIGS, image, ConfigResource(TOPIC, "t"), wanted)
    if not isinstance(judged, list):
        assert judged.code is not ErrorCode.none
        return
    api.append(*judged)
    after = apply(MetadataImage(), api.log)
    for name, value in after.topic_configs("t").items():
        assert TOPIC_CONFIGS[name].why_invalid(value) is None
    assert (
        judge(CONFIGS, after, ConfigResource(TOPIC, "t"), [w for w in wanted if w.operation < Operation.APPEND]) == []
    )
