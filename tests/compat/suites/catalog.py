"""Catalog of the suites: where each comes from, what it needs, and the command that runs it.

Place: data for runner.py. Nothing of the suites is kept in this repository.
Invariant: a suite's own test code runs unchanged; a plugin replaces its cluster (in Docker, or a Kafka that it starts)
by agents of ours, which runner.py starts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

PLUGINS = Path(__file__).parent / "plugins"


PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Protocols of the listeners of each agent, in this order."""


class User(NamedTuple):
    """`mechanism`: SCRAM-SHA-256 or SCRAM-SHA-512; PLAIN takes both."""

    mechanism: str
    name: str
    password: str


class Suite(NamedTuple):
    """One client library's own tests."""

    name: str
    repository: str
    tag: str
    """Tag of the checkout; brought in by `git clone --depth 1 --branch TAG`."""
    copied: tuple[str, ...]
    """What of the checkout the tests run from; the library itself is the released one, where it needs compiling."""
    requirements: tuple[str, ...]
    """Requirements for pip; empty for a suite that npm installs."""
    command: tuple[str, ...]
    """{python}, {junit} and {work} are filled in; run in the directory of the copy."""
    environment: dict[str, str]
    """{bootstrap}, {junit} and {work} are filled in; also {ssl}, {sasl_plaintext} and {sasl_ssl}, the addresses of
    these listeners, and {certificates}, a folder."""
    settings: dict[str, object]
    """Settings for each agent, above those of every suite (runner.SETTINGS)."""
    ports: tuple[tuple[int, ...], ...] = ((0, 0, 0, 0),)
    """Ports for each agent, its ports by PROTOCOLS; 0 is a free one."""
    users: tuple[User, ...] = ()
    """Users of the listeners with SASL."""
    scripts: tuple[str, ...] = ()
    """Scripts of ours, from plugins/, in the place of the suite's own scripts/ that ask Docker."""
    seconds_max: int = 2400


_PYTEST = (
    "{python}",
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "--junit-xml={junit}",
    "-o",
    "addopts=",
    "--timeout=120",
    "--timeout-method=signal",
)
_CONFLUENT = Suite(
    name="confluent-kafka-python",
    repository="https://github.com/confluentinc/confluent-kafka-python",
    tag="v2.15.0",
    copied=("tests",),
    requirements=(
        "confluent-kafka[avro,json,protobuf,schemaregistry,rules]==2.15.0",
        "pytest", "pytest-timeout", "pytest-asyncio", "requests-mock", "respx", "trivup", "async-timeout",
    ),
    command=(
        *_PYTEST, "-p", "headrace_for_confluent", "tests/integration/admin", "tests/integration/consumer",
        "tests/integration/producer", "--ignore=tests/integration/schema_registry",
    ),
    environment={
        "BROKERS": "{bootstrap}", "HEADRACE_SASL_PLAINTEXT": "{sasl_plaintext}", "PYTHONPATH": str(PLUGINS),
    },
    settings={},
    users=(User("SCRAM-SHA-256", "sasl_user", "sasl_user"),),
)  # fmt: skip

SUITES: tuple[Suite, ...] = (
    Suite(
        name="kafka-python",
        repository="https://github.com/dpkp/kafka-python",
        tag="3.0.8",
        copied=("kafka", "test", "pyproject.toml"),
        requirements=("pytest", "pytest-mock", "pytest-timeout", "crc32c", "lz4", "python-snappy", "zstandard"),
        command=(*_PYTEST, "-p", "headrace_for_kafka_python", "test/integration"),
        environment={
            "KAFKA_VERSION": "4.3.0", "KAFKA_ROOT": ".", "PYTHONPATH": str(PLUGINS),
            "HEADRACE_PLAINTEXT": "{bootstrap}", "HEADRACE_SSL": "{ssl}",
            "HEADRACE_SASL_PLAINTEXT": "{sasl_plaintext}", "HEADRACE_CERTIFICATES": "{certificates}",
        },
        settings={"num.partitions": 4, "group.min.session.timeout.ms": 100},
        users=(User("SCRAM-SHA-256", "alice", "alice-secret"), User("SCRAM-SHA-512", "alice", "alice-secret")),
    ),
    Suite(
        name="aiokafka",
        repository="https://github.com/aio-libs/aiokafka",
        tag="v0.14.0",
        copied=("tests", "docker"),
        requirements=(
            "aiokafka[zstd]==0.14.0", "pytest==9.0.2", "pytest-asyncio==1.3.0", "pytest-mock", "pytest-timeout",
            "docker", "confluent-kafka==2.15.0",
        ),
        command=(
            *_PYTEST, "-p", "headrace_for_aiokafka", "--docker-image=headrace:2.13_4.0.0", "--no-pull",
            "tests/test_consumer.py", "tests/test_coordinator.py", "tests/test_producer.py", "tests/test_admin.py",
            "tests/test_client.py", "tests/test_fetcher.py", "tests/test_sender.py", "tests/test_pep492.py",
            "tests/test_sasl.py", "tests/test_transactional_producer.py", "tests/test_transactional_consumer.py",
        ),
        environment={
            "HEADRACE_BOOTSTRAP": "{bootstrap}", "HEADRACE_SSL": "{ssl}", "HEADRACE_SASL_PLAINTEXT": "{sasl_plaintext}",
            "HEADRACE_SASL_SSL": "{sasl_ssl}", "HEADRACE_CERTIFICATES": "{certificates}", "PYTHONPATH": str(PLUGINS),
        },
        settings={"num.partitions": 2, "super.users": "User:ANONYMOUS"},
        users=(User("SCRAM-SHA-256", "test", "test"),),
    ),
    _CONFLUENT,
    _CONFLUENT._replace(
        name="confluent-kafka-python-consumer-protocol",
        environment={**_CONFLUENT.environment, "TEST_CONSUMER_GROUP_PROTOCOL": "consumer"},
    ),
    Suite(
        name="kafkajs",
        repository="https://github.com/tulios/kafkajs",
        tag="v2.2.4",
        copied=("src", "testHelpers", "index.js", "package.json", "yarn.lock", "jest.config.js", "types"),
        requirements=(),
        command=(
            "npx", "jest", "--ci", "--forceExit", "--no-watchman", "--maxWorkers=1",
            "src/consumer", "src/producer", "src/admin",
        ),
        environment={
            "KAFKA_VERSION": "2.4", "NODE_ENV": "test",
            "BOOTSTRAP": "{bootstrap}", "HEADRACE_PYTHON": sys.executable, "PYTHONPATH": str(PLUGINS.parents[3]),
            "JEST_JUNIT_OUTPUT_DIR": "{work}", "JEST_JUNIT_OUTPUT_NAME": "kafkajs.xml",
        },
        settings={"num.partitions": 1},
        ports=((9092, 9093, 0, 9094), (9095, 9096, 0, 9097), (9098, 9099, 0, 9100)),
        users=(
            User("SCRAM-SHA-256", "test", "testtest"),
            User("SCRAM-SHA-256", "testscram", "testtestscram=256"),
            User("SCRAM-SHA-512", "testscram", "testtestscram=512"),
            User("SCRAM-SHA-256", "alice", "alicealice"),
            User("SCRAM-SHA-256", "bob", "bobbob"),
        ),
        scripts=("addPartitions.sh",),
    ),
)  # fmt: skip
