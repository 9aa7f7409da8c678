"""Other programs that tests and loads need: which there are, and how they are installed.

Place: `make test` installs them during its first tests (plan.py); tests have the mark `needs` or ask `why_missing`, and
skip by that reason, and the table at the end of a test run (tests/house/skip_table.py) checks that nothing was skipped
although its tool is there.
Invariant: versions are pinned and contents are checked: by go.sum, by package-lock.json, by Maven's checksums. The
packages of applications in Python are pinned, as ours are.
Everything is installed below one folder, TOOLS; nothing needs root, and nothing outside TOOLS changes. Folders have
the version or the digest of what is in them in their names, where checkouts may need different ones.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from functools import partial
from pathlib import Path

from tests.tools import python_apps
from tests.tools.deploy import DEPLOY_TOOLS
from tests.tools.installing import KAFKA_CLIENT_VERSION, KAFKA_VERSION, TOOLS, digest, run
from tests.tools.plan import ToolPlan
from tests.tools.postgres import BUILDS, POOLER_OLDEST, find_pgbouncer, find_postgres, install_postgres
from tests.tools.tool import Tool

HERE = Path(__file__).parent
COMMAND = "python -m tests.tools"
"""Installs what can be installed."""
VERSITYGW = TOOLS / "bin" / "headrace-s3-server"
_GO_PROGRAMS = {
    name: TOOLS / "bin" / f"{name}-{digest(HERE / 'go-clients')}" for name in ("franz-go", "franz-go-sending", "sarama")
}
FRANZ_GO_SENDING = _GO_PROGRAMS["franz-go-sending"]
"""A producer that says what became of each record."""
GO_CLIENTS = {name: _GO_PROGRAMS[name] for name in ("franz-go", "sarama")}
"""Commands around Kafka's clients for Go: tests/tools/go-clients."""
FRANZ_GO_TESTS = TOOLS / "bin" / f"franz-go-tests-{digest(HERE / 'go-clients')}"
"""franz-go's tests of its client, which need a cluster; those about share groups are run."""
S3_PROXY = TOOLS / "bin" / "headrace-s3-latency"
"""A proxy that makes an S3 server answer late: tests/tools/go-s3, also for a `headrace bench` without a checkout."""
S3_LOAD = TOOLS / "bin" / "headrace-s3-load"
"""A client that only PUTs and GETs."""
_S3_BUILT = TOOLS / "bin" / f"headrace-s3-{digest(HERE / 'go-s3')}"
"""Says which sources the two are built of."""
FAKE_GCS = TOOLS / "bin" / f"fake-gcs-server-{digest(HERE / 'go-fake-gcs')}"
"""An emulator of Google Cloud Storage."""
_AZURITE = TOOLS / f"azurite-{digest(HERE / 'azurite')}"
AZURITE = _AZURITE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
"""An emulator of Azure Blob Storage, for node."""
KAFKAJS = TOOLS / "node_modules" / "kafkajs"
JAVA_LIBRARIES = TOOLS / "java" / f"lib-{KAFKA_CLIENT_VERSION}"
JAVA_LOG = TOOLS / "java" / "log"
"""Before JAVA_LIBRARIES in a class path, it writes the client's log to stderr."""
JAVA_CLASSES = TOOLS / "java" / f"classes-{KAFKA_CLIENT_VERSION}-{digest(HERE / 'java')}"
KAFKA_JARS = TOOLS / f"kafka-{KAFKA_VERSION}" / "lib"
"""Apache Kafka's server and its load generator, for `headrace bench`."""
SPARK_KAFKA_JARS = TOOLS / "spark-kafka" / "lib"
"""Spark's own Kafka source, with what it needs beyond PySpark's jars."""
ICEBERG_SPARK = "iceberg-spark"
ICEBERG_JARS = TOOLS / f"iceberg-spark-jars-{digest(HERE / 'iceberg-spark')}"
"""Iceberg's runtime for Spark 4.1, and a driver for SQLite; the venv ICEBERG_SPARK has PySpark 4.1."""
ICEBERG_REST = "iceberg-rest"
ICEBERG_REST_JARS = TOOLS / "iceberg-rest" / f"lib-{digest(HERE / 'iceberg-rest')}"
"""The REST catalog of Iceberg's own tests, and the class RestCatalog that starts it."""
KAFKA_APPS = TOOLS / f"kafka-apps-{KAFKA_VERSION}" / "lib"
"""Kafka Connect, MirrorMaker 2 and Kafka Streams."""
EARLIER_STREAMS = "4.2.2"
"""The version of Kafka Streams before ours: the first with streams groups for production."""
EARLIER_STREAMS_JARS = TOOLS / f"kafka-streams-{EARLIER_STREAMS}" / "lib"
DEBEZIUM_JARS = TOOLS / "debezium" / "lib"
"""Debezium's embedded engine and its connector for Postgres."""
FLINK_JARS = TOOLS / "flink" / "lib"
"""Flink's table API with a cluster in one process, and its connector for Kafka."""
PYTHON_APPS = {"quixstreams": "Quix Streams", "faust-streaming": "Faust"}


def _build_go(folder: str, package: str, program: Path) -> None:
    """A program of the module in this folder."""
    program.parent.mkdir(parents=True, exist_ok=True)
    run("go", "build", "-mod=readonly", "-o", str(program), package, cwd=HERE / folder)


def _build_franz_go_tests() -> None:
    FRANZ_GO_TESTS.parent.mkdir(parents=True, exist_ok=True)
    package = "github.com/twmb/franz-go/pkg/kgo"
    run("go", "test", "-c", "-mod=readonly", "-o", str(FRANZ_GO_TESTS), package, cwd=HERE / "go-clients")


def _install_versitygw() -> None:
    _build_go("go", "./s3-server", VERSITYGW)


def _install_s3_programs() -> None:
    _build_go("go-s3", "./latency-proxy", S3_PROXY)
    _build_go("go-s3", "./load", S3_LOAD)
    _S3_BUILT.touch()


def _install_azurite() -> None:
    """The folder is there only with all of it."""
    part = _AZURITE.with_name(f"{_AZURITE.name}.part")
    for folder in (part, _AZURITE):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "azurite", part)
    run("npm", "ci", "--no-fund", "--no-audit", "--ignore-scripts", "--prefix", str(part))
    part.rename(_AZURITE)


def _install_kafkajs() -> None:
    TOOLS.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / "node" / name, TOOLS / name)
    run("npm", "ci", "--no-fund", "--no-audit", "--prefix", str(TOOLS))


def _copy_jars(pom: Path, place: Path, kafka_version: str = KAFKA_VERSION) -> None:
    """The dependencies of a pom, resolved by Maven. The folder is there only with all of them."""
    part = place.with_name(f"{place.name}.part")
    for folder in (part, place):
        shutil.rmtree(folder, ignore_errors=True)
    run(
        "mvn", "--quiet", "--batch-mode", "--strict-checksums", "-f", str(pom), "dependency:copy-dependencies",
        f"-DoutputDirectory={part}", f"-Dkafka.version={kafka_version}",
    )  # fmt: skip
    part.rename(place)


def _install_iceberg_spark() -> None:
    _copy_jars(HERE / "iceberg-spark" / "pom.xml", ICEBERG_JARS)
    python_apps.install(ICEBERG_SPARK)


def _install_iceberg_rest() -> None:
    _copy_jars(HERE / "iceberg-rest" / "pom.xml", ICEBERG_REST_JARS)
    source = HERE / "iceberg-rest" / "RestCatalog.java"
    run("javac", "-d", str(ICEBERG_REST_JARS), "-cp", f"{ICEBERG_REST_JARS}/*", str(source))


def _install_java_client() -> None:
    JAVA_CLASSES.mkdir(parents=True, exist_ok=True)
    _copy_jars(HERE / "java" / "pom.xml", JAVA_LIBRARIES, KAFKA_CLIENT_VERSION)
    _copy_jars(HERE / "java" / "log" / "pom.xml", JAVA_LOG)
    sources = [str(path) for path in sorted((HERE / "java").glob("*.java"))]
    run("javac", "-d", str(JAVA_CLASSES), "-cp", f"{JAVA_LIBRARIES}/*", *sources)


def find_chromium() -> str | None:
    """Return the path of the distribution's Chromium."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def find_haproxy() -> str | None:
    """Return the path of the distribution's haproxy, which is in no user's PATH."""
    return shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _has_postgres(major: int) -> bool:
    return find_postgres(major) is not None


ALL = {
    tool.name: tool
    for tool in (
        Tool("versitygw", "a real S3 server", ("go",), VERSITYGW.exists, _install_versitygw, COMMAND),
        Tool(
            "s3-latency", "a slow network before an S3 server", ("go",), _S3_BUILT.exists, _install_s3_programs, COMMAND
        ),
        *(
            Tool(
                name,
                "Kafka's client for Go",
                ("go",),
                program.exists,
                partial(_build_go, "go-clients", f"./{name}", program),
                COMMAND,
            )
            for name, program in _GO_PROGRAMS.items()
        ),
        Tool(
            "franz-go-tests",
            "franz-go's tests",
            ("go",),
            FRANZ_GO_TESTS.exists,
            _build_franz_go_tests,
            COMMAND,
            is_nightly=True,
        ),
        Tool(
            "fake-gcs-server",
            "an emulator of Google Cloud Storage",
            ("go",),
            FAKE_GCS.exists,
            partial(_build_go, "go-fake-gcs", "github.com/fsouza/fake-gcs-server", FAKE_GCS),
            COMMAND,
        ),
        Tool(
            "azurite",
            "an emulator of Azure Blob Storage (360 MB)",
            ("node", "npm"),
            AZURITE.exists,
            _install_azurite,
            COMMAND,
        ),
        Tool("kafkajs", "Kafka's client for Node.js", ("node", "npm"), KAFKAJS.exists, _install_kafkajs, COMMAND),
        Tool(
            "kafka-clients",
            "Kafka's own Java client",
            ("java", "javac", "mvn"),
            lambda: any(JAVA_CLASSES.glob("*.class")) and any(JAVA_LIBRARIES.glob("kafka-clients-*.jar")),
            _install_java_client,
            COMMAND,
        ),
        Tool(
            "kafka",
            f"Apache Kafka {KAFKA_VERSION} itself",
            ("java", "mvn"),
            lambda: any(KAFKA_JARS.glob("kafka_*.jar")),
            lambda: _copy_jars(HERE / "kafka" / "pom.xml", KAFKA_JARS),
            COMMAND,
        ),
        Tool(
            "spark-kafka",
            "Spark's own Kafka source",
            ("java", "mvn"),
            lambda: any(SPARK_KAFKA_JARS.glob("spark-sql-kafka-*.jar")),
            lambda: _copy_jars(HERE / "spark" / "pom.xml", SPARK_KAFKA_JARS),
            COMMAND,
            is_nightly=True,
        ),
        Tool(
            ICEBERG_REST,
            "Iceberg's REST catalog (80 MB)",
            ("java", "mvn"),
            (ICEBERG_REST_JARS / "RestCatalog.class").exists,
            _install_iceberg_rest,
            COMMAND,
            is_nightly=True,
        ),
        Tool(
            ICEBERG_SPARK,
            "PySpark 4.1 with Iceberg (580 MB)",
            ("java", "mvn"),
            lambda: python_apps.is_installed(ICEBERG_SPARK) and ICEBERG_JARS.is_dir(),
            _install_iceberg_spark,
            COMMAND,
            is_nightly=True,
        ),
        Tool(
            "kafka-apps",
            "Kafka Connect, MirrorMaker 2 and Kafka Streams",
            ("java", "javac", "mvn"),
            lambda: any(KAFKA_APPS.glob("kafka-streams-*.jar")),
            lambda: _copy_jars(HERE / "kafka-apps" / "pom.xml", KAFKA_APPS),
            COMMAND,
            is_nightly=True,
        ),
        Tool(
            "kafka-streams-earlier",
            f"Kafka Streams {EARLIER_STREAMS}",
            ("java", "javac", "mvn"),
            lambda: any(EARLIER_STREAMS_JARS.glob("kafka-streams-*.jar")),
            lambda: _copy_jars(HERE / "kafka-streams" / "pom.xml", EARLIER_STREAMS_JARS, EARLIER_STREAMS),
            COMMAND,
            is_nightly=True,
        ),
        Tool(
            "debezium",
            "Debezium's embedded engine",
            ("java", "javac", "mvn"),
            lambda: any(DEBEZIUM_JARS.glob("debezium-embedded-*.jar")),
            lambda: _copy_jars(HERE / "debezium" / "pom.xml", DEBEZIUM_JARS),
            COMMAND,
            is_nightly=True,
        ),
        Tool(
            "flink",
            "Flink SQL and its Kafka connector",
            ("java", "javac", "mvn"),
            lambda: any(FLINK_JARS.glob("flink-sql-connector-kafka-*.jar")),
            lambda: _copy_jars(HERE / "flink" / "pom.xml", FLINK_JARS),
            COMMAND,
            is_nightly=True,
        ),
        *(
            Tool(
                name,
                what,
                (),
                partial(python_apps.is_installed, name),
                partial(python_apps.install, name),
                COMMAND,
                is_nightly=True,
            )
            for name, what in PYTHON_APPS.items()
        ),
        Tool(
            "karapace",
            "Karapace's schema registry",
            (),
            python_apps.python_of("karapace").exists,
            None,
            f"a venv {TOOLS / 'karapace'} that has Karapace 6 (PyPI has no package)",
            is_nightly=True,
        ),
        Tool("Chromium", "a browser", (), lambda: find_chromium() is not None, None, "apt-get install chromium"),
        Tool("haproxy", "a load balancer", (), lambda: find_haproxy() is not None, None, "apt-get install haproxy"),
        Tool("kcat", "a client on librdkafka", ("kcat",), lambda: True, None, "apt-get install kcat"),
        Tool("java", "Java 17 for Spark", ("java",), lambda: True, None, "apt-get install default-jre-headless"),
        *(
            Tool(
                f"postgres-{major}",
                f"Postgres {major}",
                (),
                partial(_has_postgres, major),
                partial(install_postgres, major),
                f"install Maven, then {COMMAND}",
            )
            for major in BUILDS
        ),
        Tool(
            "pgbouncer",
            "a connection pooler",
            (),
            lambda: find_pgbouncer() is not None,
            None,
            f"install PgBouncer {'.'.join(map(str, POOLER_OLDEST))} or newer",
        ),
    )
}


def every_tool() -> dict[str, Tool]:
    """Return all tools by name, with those that check deploy/."""
    return ALL | DEPLOY_TOOLS


def write_plan(folder: Path, installing: Collection[str] = ()) -> ToolPlan:
    """Decide which tools a test run has: those that are there now, and those that will be installed during it."""
    tools = every_tool()
    missing = {name: tool.why_missing() for name, tool in tools.items()}
    left_out = {name: None if name in installing else reason for name, reason in missing.items()}
    return ToolPlan.write(folder, left_out, present=[name for name, reason in missing.items() if reason is None])


def why_missing(name: str) -> str | None:
    """Return the reason by which a test that needs this tool is skipped; None if the tool is there.

    In a test run, waits until the tool is installed if the run's plan promises it.
    """
    plan = ToolPlan.current()
    return plan.wait_for(name) if plan else every_tool()[name].why_missing()
