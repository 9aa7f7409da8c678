"""Every setting of Headrace, declared once: name, type, default, bounds, meaning, scope.

Place: below every package; each component takes the settings it needs. `config.load` fills `Settings` from
file, environment and flags; docs/operate/CONFIGURATION.md is generated from it. config/security_settings.py has those
that can be set for one listener.
Invariant: a setting has Kafka's name where Kafka has one; names end in their unit; an unknown key is refused. The scope
is in a setting's Meta: CLUSTER has one value in the cluster, TOPIC_DEFAULT too, and a topic may have another; a
setting without a scope is each process's own, and decides neither which data the cluster keeps nor how its processes
agree on who does what. Two processes with different values of CLUSTER would disagree, so the value in the metadata log
applies to every process, and that of a file only while the cluster has none
(docs/decisions/0033-one-value-per-cluster.md). The next release refuses a setting with the mark `goes`, which is never
one of Kafka's or one with a scope.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, field

from headrace.config.bounds import LONG_MAX, SHORT_MAX, AtLeastMinusOne, NodeId, NonNegativeInt, Port, PositiveInt
from headrace.config.security_settings import SecuritySettings

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
MIB = 1024 * 1024
INT_MAX = 2**31 - 1


class SettingScope(enum.Enum):
    """The processes that share one value."""

    PROCESS = "process"
    CLUSTER = "cluster"
    TOPIC_DEFAULT = "topic default"


CLUSTER, TOPIC_DEFAULT = ({"scope": scope} for scope in (SettingScope.CLUSTER, SettingScope.TOPIC_DEFAULT))
OF_CLIENTS = {"scope": SettingScope.PROCESS, "bounds": "clients"}
"""Each has a row in docs/operate/LIMITS.md."""


def goes(reason: str) -> dict[str, object]:
    """The mark of a setting that the next release refuses; until then a value that is set applies, with a warning.

    `reason`: one sentence that says why the default is right for every cluster.
    """
    return {"goes": reason}


class Settings(SecuritySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One flat namespace, as in Kafka's server.properties."""

    # == Each process's own

    # -- authorization. No request of a client changes it: a client that may change configs would make itself a super
    # user. It has to be the same on every agent.
    authorizer_class_name: Annotated[
        str,
        Meta(
            pattern=f"^({STANDARD_AUTHORIZER.replace('.', '[.]')}|)$",
            description="Whether ACLs are enforced. Empty: they are stored and listed only. Otherwise Kafka's name of"
            " the authorizer that applies. The same on every agent.",
            extra_json_schema={"accepted": f"{STANDARD_AUTHORIZER}, or empty"},
        ),
    ] = field(default="", name="authorizer.class.name")
    super_users: Annotated[
        str,
        Meta(
            pattern="^([^:;]+:[^;]+(;[^:;]+:[^;]+)*;?|)$",
            description="Principals that may do everything, separated by semicolons: User:admin;User:backup. The same"
            " on every agent.",
            extra_json_schema={"accepted": "type:name, separated by semicolons"},
        ),
    ] = field(default="", name="super.users")
    allow_everyone_if_no_acl_found: Annotated[
        bool,
        Meta(description="Whether all clients may use a resource that no ACL includes. The same on every agent."),
    ] = field(default=False, name="allow.everyone.if.no.acl.found")

    # -- the HTTP listener. With a token file or a trust store, a client has to show a token or a certificate for every
    # path except /healthz and /readyz. Versions and ciphers of TLS are those of ssl.enabled.protocols and
    # ssl.cipher.suites.
    http_host: Annotated[str, Meta(description="Address of the HTTP listener (health, metrics, status).")] = field(
        default="127.0.0.1", name="http.host"
    )
    http_port: Annotated[
        Port | None,
        Meta(
            description="Port of the HTTP listener; 0 picks a free one. Unset: 9644, or 9645 in a process that is only"
            " a compactor, so that both run on one host."
        ),
    ] = field(default=None, name="http.port")
    http_ssl_keystore_location: Annotated[
        str,
        Meta(
            description="PEM file with the private key and the certificate chain of the HTTP listener, which then"
            " accepts HTTPS only. Read again when it changes. Unset: HTTP."
        ),
    ] = field(default="", name="http.ssl.keystore.location")
    http_ssl_key_password: Annotated[
        str | None, Meta(description="Password of the HTTP listener's private key, if it has one.")
    ] = field(default=None, name="http.ssl.key.password")
    http_ssl_truststore_location: Annotated[
        str,
        Meta(
            description="PEM file with the authorities of HTTP clients' certificates: such a client may read every"
            " path. Needs http.ssl.keystore.location. Unset: no client certificates."
        ),
    ] = field(default="", name="http.ssl.truststore.location")
    http_bearer_token_location: Annotated[
        str,
        Meta(
            description="File with the bearer tokens of HTTP clients that may read every path, one per line, read"
            " again when it changes. If neither this nor http.ssl.truststore.location is set, every client may."
        ),
    ] = field(default="", name="http.bearer.token.location")

    # -- identity and listeners
    node_id: Annotated[
        NodeId | None,
        Meta(description="This agent's node id. Unset: one is leased from the metastore."),
    ] = field(default=None, name="node.id")
    process_roles: Annotated[
        str,
        Meta(
            pattern="^(broker|controller|compactor|tables)(,(broker|controller|compactor|tables))*$",
            description="What this process does. Each role can also run in a separate process; tables runs alone or"
            " with compactor.",
            extra_json_schema={"accepted": "broker, controller, compactor, tables, separated by commas"},
        ),
    ] = field(default="broker,controller", name="process.roles")
    broker_rack: Annotated[str | None, Meta(description="The availability zone this agent runs in.")] = field(
        default=None, name="broker.rack"
    )
    listeners: Annotated[
        str,
        Meta(
            description="NAME://host:port, comma-separated: the listeners for clients, for other agents"
            " (inter.broker.listener.name) and for controllers (controller.listener.names). Port 0 picks a free one."
        ),
    ] = field(default="PLAINTEXT://127.0.0.1:9092", name="listeners")
    advertised_listeners: Annotated[
        str,
        Meta(
            description="NAME://host:port, comma-separated: where clients of each listener, and other agents, are"
            " sent. Port 0: the bound port. A listener that is not named advertises its own address, if that is one."
        ),
    ] = field(default="", name="advertised.listeners")
    inter_broker_listener_name: Annotated[
        str,
        Meta(
            description="The name in listeners that agents use between each other; the same on every agent. Unset: the"
            " first listener."
        ),
    ] = field(default="", name="inter.broker.listener.name")
    controller_listener_names: Annotated[
        str,
        Meta(description="The name in listeners that is for controllers; not advertised to clients. Unset: none."),
    ] = field(default="", name="controller.listener.names")
    listener_security_protocol_map: Annotated[
        str,
        Meta(
            description="NAME:PROTOCOL, comma-separated: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. A listener that it"
            " does not name uses the protocol that its name is, else PLAINTEXT."
        ),
    ] = field(default="", name="listener.security.protocol.map")
    proxy_protocol_listeners: Annotated[
        str,
        Meta(
            description="Names in listeners on which every connection begins with a header of PROXY protocol version"
            " 2. Only behind a load balancer that sends it: clients could name any address."
        ),
    ] = field(default="", name="proxy.protocol.listeners")

    # -- where state is stored
    metastore_url: Annotated[
        str,
        Meta(
            description="postgresql:// address of the metastore. Special characters of user and password are"
            " percent-encoded (@ is %40, / is %2F, % is %25); parts that it leaves out come from PGHOST, PGPORT,"
            " PGUSER, PGPASSWORD and PGDATABASE."
        ),
    ] = field(default="", name="metastore.url")
    metastore_password_command: Annotated[
        str,
        Meta(
            description="Program with arguments that prints the password for metastore.url, such as a token of a"
            " cloud's IAM; it runs at most once a minute. Unset: the one in metastore.url."
        ),
    ] = field(default="", name="metastore.password.command")
    metastore_pool_size: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="Connections of one process to Postgres, and up to half as many more for look-ups of readers.",
        ),
    ] = field(default=8, name="metastore.pool.size")
    metastore_statement_timeout_ms: Annotated[
        PositiveInt,
        Meta(
            extra=goes(
                "A statement takes milliseconds: after 15 s its server is in trouble, however large the cluster is."
            ),
            description="Postgres cancels a statement of Headrace after this time.",
        ),
    ] = field(default=15_000, name="metastore.statement.timeout.ms")
    metastore_lock_timeout_ms: Annotated[
        PositiveInt,
        Meta(
            extra=goes(
                "Headrace holds locks for milliseconds: to wait longer than 5 s for another session helps no client."
            ),
            description="Postgres stops waiting for a lock after this time.",
        ),
    ] = field(default=5_000, name="metastore.lock.timeout.ms")
    commit_shards: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Commit shards of a new cluster: four times as many as a zone will have agents. `headrace"
            " storage grow-commit-shards` adds more.",
        ),
    ] = field(default=8, name="commit.shards")
    bucket: Annotated[
        str,
        Meta(
            description="Where segment files are stored: s3://name/prefix, az://account/container/prefix (or"
            " abfss://container@account.dfs.core.windows.net/prefix), gs://name/prefix, or file:///directory."
        ),
    ] = field(default="", name="bucket")
    s3_endpoint: Annotated[str | None, Meta(description="URL of an S3-compatible server. Unset: AWS.")] = field(
        default=None, name="s3.endpoint"
    )
    s3_region: Annotated[str | None, Meta(description="AWS region. Unset: from the AWS environment.")] = field(
        default=None, name="s3.region"
    )
    s3_path_style: Annotated[
        bool,
        Meta(
            description="Address buckets as host/bucket/key instead of bucket.host/key. Always so if the host is an IP"
            " address, or if the bucket's name has dots and the endpoint is https."
        ),
    ] = field(default=False, name="s3.path.style")
    s3_server_side_encryption: Annotated[
        str,
        Meta(
            pattern="^(|AES256|aws:kms|aws:kms:dsse)$",
            description="How S3 encrypts each object that is put; a put that S3 does not encrypt like this fails."
            " Unset: the bucket's default.",
            extra_json_schema={"accepted": "AES256, aws:kms, aws:kms:dsse, or empty"},
        ),
    ] = field(default="", name="s3.server.side.encryption")
    s3_kms_key_id: Annotated[
        str, Meta(description="ARN of the KMS key, for aws:kms and aws:kms:dsse. Unset: the account's key for S3.")
    ] = field(default="", name="s3.kms.key.id")
    s3_expected_bucket_owner: Annotated[
        str,
        Meta(
            pattern="^([0-9]{12}|)$",
            description="Account id of the bucket's owner: S3 refuses each request if another account owns it. Unset:"
            " not checked.",
            extra_json_schema={"accepted": "12 digits, or empty"},
        ),
    ] = field(default="", name="s3.expected.bucket.owner")
    azure_endpoint: Annotated[
        str | None,
        Meta(
            description="URL of the storage account's blob service, for a private one or another cloud. Unset:"
            " https://ACCOUNT.blob.core.windows.net."
        ),
    ] = field(default=None, name="azure.endpoint")
    gcs_endpoint: Annotated[
        str | None,
        Meta(description="URL of Google's storage API. Unset: https://storage.googleapis.com."),
    ] = field(default=None, name="gcs.endpoint")
    s3_max_connections: Annotated[
        PositiveInt,
        Meta(
            extra=goes(
                "Enough for a process: it uploads 8 files at a time, and replays read over at most 16 connections."
            ),
            description="Maximum number of connections to the object store. Reads of 256 KiB and more have their own,"
            " half as many, so that they leave all others to uploads.",
        ),
    ] = field(default=64, name="s3.max.connections")
    s3_request_timeout_ms: Annotated[
        PositiveInt,
        Meta(
            extra=goes("The limit grows by 1 s for each 4 MiB of a body, so it fits requests of every size."),
            description="Timeout of one object store request.",
        ),
    ] = field(default=10_000, name="s3.request.timeout.ms")
    store_retries: Annotated[
        NonNegativeInt,
        Meta(
            extra=goes(
                "Pauses between attempts double: five outlast short errors, and callers try again after longer ones."
            ),
            description="Number of retries of a retryable object store request.",
        ),
    ] = field(default=5, name="store.retries")
    store_hedge_percent: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="Percentage of PUTs to object storage of flushed files up to 4 MiB that may get a second,"
            " identical request when slower than 95 of 100. 0: none.",
        ),
    ] = field(default=5, name="store.hedge.percent")

    # -- write path
    linger_ms: Annotated[
        int, Meta(ge=1, le=60_000, description="A buffer is flushed at most this long after its first batch.")
    ] = field(default=100, name="linger.ms")
    linger_idle_ms: Annotated[
        int,
        Meta(
            extra=goes(
                "Requests that were sent together arrive within 3 ms; to wait longer only delays their answers."
            ),
            ge=1,
            le=60_000,
            description="A buffer is flushed early when no byte of a Produce request arrives for this long.",
        ),
    ] = field(default=3, name="linger.idle.ms")
    flush_early_per_second: Annotated[
        NonNegativeInt | None,
        Meta(
            description="Early flushes per second, on average, of files below flush.early.free.bytes. 0 never flushes"
            " early. Unset: 10 on object storage, unlimited on a directory.",
        ),
    ] = field(default=None, name="flush.early.per.second")
    flush_early_burst: Annotated[
        PositiveInt,
        Meta(
            extra=goes("Twenty small files cost $0.0001, and are enough for the first clients after a quiet time."),
            description="Early flushes that may follow each other at once after a quiet time, and with which an agent"
            " starts.",
        ),
    ] = field(default=20, name="flush.early.burst")
    flush_early_saving_ms: Annotated[
        NonNegativeInt,
        Meta(
            extra=goes("The savings of an hour cost at most $0.18, and last longer than usual bursts."),
            description="Early flushes that are not used are saved for later, up to what flush.early.per.second gives"
            " in this time.",
        ),
    ] = field(default=3_600_000, name="flush.early.saving.ms")
    flush_early_per_second_max: Annotated[
        PositiveInt,
        Meta(
            extra=goes("Postgres takes 50 commits a second from an agent, and slow commits lower the pace."),
            description="Early flushes per second while some are saved; at least flush.early.per.second, lower while"
            " commits are slow. Without effect where early flushes are unlimited.",
        ),
    ] = field(default=50, name="flush.early.per.second.max")
    flush_early_free_bytes: Annotated[
        PositiveInt,
        Meta(
            extra=goes("A file of 4 MiB is half as large as the largest: flushed early, it costs hardly more PUTs."),
            description="A file of at least this size is flushed early without counting as an early flush.",
        ),
    ] = field(default=4 * 1024 * 1024, name="flush.early.free.bytes")
    flush_bytes: Annotated[
        int, Meta(ge=65_536, description="A buffer is flushed as soon as it holds this many bytes.")
    ] = field(default=8 * 1024 * 1024, name="flush.bytes")
    upload_parallelism: Annotated[
        PositiveInt,
        Meta(
            extra=goes("Eight uploads of 8 MiB at a time are more than the one core of an agent fills."),
            description="Number of segment files uploaded in parallel.",
        ),
    ] = field(default=8, name="upload.parallelism")
    ingest_merge_max_bytes: Annotated[
        NonNegativeInt,
        Meta(
            extra=goes("Merged batches save cost for each batch, and one of 64 KiB is small for every consumer."),
            description="Small uncompressed batches of non-idempotent producers are merged up to this size"
            " when a file is laid out; 0: never.",
        ),
    ] = field(default=65_536, name="ingest.merge.max.bytes")
    buffer_memory_bytes: Annotated[
        int,
        Meta(ge=16 * 1024 * 1024, description="Bytes of produce requests held in memory; above this producers wait."),
    ] = field(default=256 * 1024 * 1024, name="buffer.memory.bytes")
    socket_request_max_bytes: Annotated[PositiveInt, Meta(description="Largest request frame.")] = field(
        default=104_857_600, name="socket.request.max.bytes"
    )
    connections_max_idle_ms: Annotated[
        PositiveInt, Meta(description="An idle connection is closed after this time.")
    ] = field(default=600_000, name="connections.max.idle.ms")
    max_connections: Annotated[PositiveInt, Meta(description="Maximum number of Kafka connections of one agent.")] = (
        field(default=10_000, name="max.connections")
    )
    max_inflight_requests: Annotated[
        PositiveInt,
        Meta(
            extra=goes("Enough for librdkafka, which sends small requests; buffer.memory.bytes bounds their memory."),
            description="Requests of one connection with an answer that was not sent, at most 64 of them other than"
            " Produce; above this the agent stops reading from it.",
        ),
    ] = field(default=512, name="connection.max.inflight.requests")

    # -- read path
    fetch_max_bytes: Annotated[
        PositiveInt, Meta(description="Largest fetch response. A single larger batch is still returned.")
    ] = field(default=57_671_680, name="fetch.max.bytes")
    feed_poll_interval_ms: Annotated[
        PositiveInt,
        Meta(
            extra=goes("A poll costs Postgres little, and polls are rare while no consumer waits at the end."),
            description="How often the commit feed is polled while consumers are at the end; otherwise every 100 ms,"
            " and every 10 s once nothing happens.",
        ),
    ] = field(default=15, name="feed.poll.interval.ms")
    feed_follow_all: Annotated[
        bool,
        Meta(
            extra=goes(
                "What the clients of an agent need is followed anyway; the rest costs CPU time and helps none of them."
            ),
            description="Whether the agent follows the feed of every commit shard. If false, of those that its clients"
            " read or write, and of its share of all: an agent in a large cluster then spends little on the feed."
            " Agents may differ. With up to 3 agents each follows all.",
        ),
    ] = field(default=False, name="feed.follow.all")
    cache_bytes: Annotated[
        NonNegativeInt, Meta(description="Memory for file chunks that were recently written or read.")
    ] = field(default=128 * 1024 * 1024, name="cache.bytes")
    zone_cache_timeout_ms: Annotated[
        NonNegativeInt,
        Meta(
            extra=goes(
                "Another agent of the zone answers within milliseconds; the limit ends the wait for one in trouble."
            ),
            description="If an agent of the zone does not deliver a cached chunk within this time,"
            " the object store is read instead. 0: other agents are never asked.",
        ),
    ] = field(default=500, name="zone.cache.timeout.ms")

    # -- membership and groups
    broker_heartbeat_interval_ms: Annotated[PositiveInt, Meta(description="How often an agent renews its lease.")] = (
        field(default=3_000, name="broker.heartbeat.interval.ms")
    )
    initial_broker_registration_timeout_ms: Annotated[
        PositiveInt, Meta(description="An agent that cannot join the cluster within this time exits.")
    ] = field(default=60_000, name="initial.broker.registration.timeout.ms")

    # -- access
    delegation_token_secret_key: Annotated[
        str | None,
        Meta(
            description="Secret for delegation tokens; the same on every agent. Unset: no delegation tokens."
            "  Tokens are issued only on listeners that authenticate."
        ),
    ] = field(default=None, name="delegation.token.secret.key")

    metadata_secret_keys: Annotated[
        str | None,
        Meta(
            description="Keys that seal the cluster's secrets in the metastore: 32 bytes in base64 each, separated by"
            " commas. The first one seals, all open. The same on every agent. Unset: not sealed. `headrace storage"
            " seal-secrets` seals what is there.",
        ),
    ] = field(default=None, name="metadata.secret.keys")

    # -- background work
    compactor_threads: Annotated[
        PositiveInt, Meta(description="Background jobs (compaction, retention, deletion) that one process works on.")
    ] = field(default=1, name="compactor.threads")
    link_threads: Annotated[
        PositiveInt,
        Meta(
            description="Jobs of links (`headrace link`) that one process with the role compactor works on: each copies"
            " a share of a link's partitions."
        ),
    ] = field(default=4, name="link.threads")
    compactor_io_max_bytes_per_second: Annotated[
        PositiveInt,
        Meta(description="Bytes per second that all background jobs of one process read and write together."),
    ] = field(default=100_000_000, name="compactor.io.max.bytes.per.second")
    tables_catalog_name: Annotated[
        str,
        Meta(
            description="The Iceberg catalog of topics' tables: a name, under which pyiceberg also reads its"
            " configuration (.pyiceberg.yaml, PYICEBERG_CATALOG__<NAME>__<PROPERTY>). Empty: no tables."
        ),
    ] = field(default="", name="tables.catalog.name")
    tables_catalog_uri: Annotated[
        str,
        Meta(
            description="Address of the catalog: http:// for an Iceberg REST catalog, sqlite:// or postgresql:// for"
            " another database than the metastore's. Empty: from pyiceberg's configuration, which also has passwords"
            " and tokens."
        ),
    ] = field(default="", name="tables.catalog.uri")
    tables_warehouse: Annotated[
        str, Meta(description="Where the files of new tables are. Empty: as the catalog or its configuration says.")
    ] = field(default="", name="tables.warehouse")
    tables_namespace: Annotated[
        str,
        Meta(
            pattern="^[^.]+([.][^.]+)*$",
            description="The catalog's namespace that has the tables.",
            extra_json_schema={"accepted": "names, separated by dots"},
        ),
    ] = field(default="headrace", name="tables.namespace")
    tables_schema_registry_url: Annotated[
        str,
        Meta(
            description="Address of the schema registry for tables with --value-format registry, also with a login:"
            " https://user:password@registry:8081. Several, separated by commas, are tried in turn."
        ),
    ] = field(default="", name="tables.schema.registry.url")
    tables_commit_interval_ms: Annotated[
        PositiveInt,
        Meta(
            description="Pause between two commits to a table that has everything: shorter is fresher, longer makes"
            " larger files."
        ),
    ] = field(default=60_000, name="tables.commit.interval.ms")
    tables_snapshot_max_age_ms: Annotated[
        NonNegativeInt,
        Meta(
            description="Age at which replaced snapshots of a table, and the files that only they have, are removed."
            " 0: never."
        ),
    ] = field(default=86_400_000, name="tables.snapshot.max.age.ms")
    tables_orphan_min_age_ms: Annotated[
        NonNegativeInt,
        Meta(
            extra=goes("A commit takes minutes at most: no worker waits for a file that is a day older."),
            description="The worker removes data files that it, or another worker, wrote for a commit that did not"
            " happen, once the table has a file that is so much newer. 0: it removes none.",
        ),
    ] = field(default=86_400_000, name="tables.orphan.min.age.ms")
    tables_upkeep_interval_ms: Annotated[
        PositiveInt,
        Meta(
            extra=goes("What upkeep does is due after hours or days, and an upkeep without work reads only metadata."),
            description="Pause between two upkeeps of a table: deletion of rows older than table.retention.ms,"
            " rewriting of small files, merging of manifests, expiry of snapshots.",
        ),
    ] = field(default=3_600_000, name="tables.upkeep.interval.ms")
    tables_rewrite_min_files: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000,
            description="So many data files of about one size in a partition of a table are replaced by one. 0: never.",
        ),
    ] = field(default=8, name="tables.rewrite.min.files")
    tables_rewrite_max_bytes: Annotated[
        PositiveInt,
        Meta(
            extra=goes("It fits a worker's memory; a table's write.target-file-size-bytes makes files smaller."),
            description="Stored bytes of a file that upkeep writes, at most about; never more than the table's"
            " write.target-file-size-bytes. Its rows are in memory, opened: several times as much.",
        ),
    ] = field(default=67_108_864, name="tables.rewrite.max.bytes")
    compaction_cpu_percent: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="CPU time of each job of compactor.threads, in percent of one core, to open, merge and"
            " compress records. 100: no limit.",
        ),
    ] = field(default=100, name="compaction.cpu.percent")

    # -- the process
    shutdown_grace_ms: Annotated[
        PositiveInt, Meta(description="Time that requests in progress have to finish after SIGTERM.")
    ] = field(default=15_000, name="shutdown.grace.ms")
    log_format: Annotated[
        str,
        Meta(
            pattern="^(console|json)$",
            description="`console` for people, `json` for programs: one object per line with `timestamp`, `level`,"
            " `logger`, `message`, `fields` (the message's name=value) and `exception`.",
        ),
    ] = field(default="console", name="log.format")
    log_level: Annotated[str, Meta(pattern="^(debug|info|warning|error)$", description="Minimum log level.")] = field(
        default="info", name="log.level"
    )
    slow_request_ms: Annotated[
        NonNegativeInt,
        Meta(
            description="A request that takes so long, without what a Fetch asked to wait for, gets a log line; at"
            " most five a minute and API. 0: none."
        ),
    ] = field(default=5_000, name="slow.request.ms")
    otel_enable: Annotated[
        bool,
        Meta(
            description="Send spans of produce and fetch requests by OpenTelemetry (OTLP over HTTP), as the standard"
            " OTEL_* environment variables say. Needs the extra `otel`."
        ),
    ] = field(default=False, name="otel.enable")
    topic_metrics_max: Annotated[
        NonNegativeInt,
        Meta(description="Topics that an agent shows by name in /metrics; all further ones are one sum. 0: none."),
    ] = field(default=100, name="topic.metrics.max")
    client_metrics_max: Annotated[
        int,
        Meta(
            description="Pairs of user and client id that an agent shows by name in /metrics, those that use most;"
            " all others are one sum. 0: none.",
            ge=0,
            le=1_000,
        ),
    ] = field(default=100, name="client.metrics.max")
    consumer_lag_metrics_max: Annotated[
        NonNegativeInt,
        Meta(
            description="Pairs of group and partition that the active controller shows in /metrics, those with the"
            " largest lag. 0: it does not ask for lags."
        ),
    ] = field(default=1_000, name="consumer.lag.metrics.max")
    audit_log_path: Annotated[
        str,
        Meta(
            description="File for the audit log, one JSON object per line; it may be moved while it is written. Unset:"
            " only the process's log has it, as lines of headrace.audit."
        ),
    ] = field(default="", name="audit.log.path")

    @property
    def metastore_reader_connections(self) -> int:
        """Most connections for look-ups of readers, in addition to metastore.pool.size."""
        return max(1, self.metastore_pool_size // 2)

    # == What clients may use of one agent. The defaults fit an agent into 2 GiB; docs/operate/LIMITS.md says what
    # happens at each limit.

    # -- connections
    max_connections_per_ip: Annotated[
        PositiveInt,
        Meta(
            extra=OF_CLIENTS,
            description="Maximum number of Kafka connections from one IPv4 address or IPv6 /64 network to one agent.",
        ),
    ] = field(default=INT_MAX, name="max.connections.per.ip")
    max_connection_creation_rate: Annotated[
        PositiveInt,
        Meta(
            extra=OF_CLIENTS, description="New Kafka connections per second of one agent; it closes what comes faster."
        ),
    ] = field(default=INT_MAX, name="max.connection.creation.rate")
    max_unauthenticated_connections: Annotated[
        PositiveInt,
        Meta(
            extra=OF_CLIENTS,
            description="Kafka connections of one agent before PROXY header, TLS handshake and authentication are"
            " complete; beyond it the oldest of the address with the most of them is closed.",
        ),
    ] = field(default=500, name="max.unauthenticated.connections")
    unauthenticated_connections_max_ms: Annotated[
        PositiveInt,
        Meta(
            extra=OF_CLIENTS
            | goes("Slow lines need seconds; if too many connections wait, the oldest are closed earlier."),
            description="PROXY header, TLS handshake and authentication must be complete after this time.",
        ),
    ] = field(default=60_000, name="unauthenticated.connections.max.ms")
    http_max_connections: Annotated[
        PositiveInt,
        Meta(
            extra=OF_CLIENTS
            | goes("Probes, Prometheus and a few people need fewer; beyond it, the oldest that waits is closed."),
            description="Maximum number of connections to the HTTP listener.",
        ),
    ] = field(default=64, name="http.max.connections")

    # -- requests and replies
    control_request_max_bytes: Annotated[
        int,
        Meta(
            extra=OF_CLIENTS
            | goes("A request without records has at most request.max.elements elements, which fit into 8 MiB."),
            ge=65_536,
            description="Largest request frame of every API but Produce.",
        ),
    ] = field(default=8 * MIB, name="control.request.max.bytes")
    request_max_elements: Annotated[
        int,
        Meta(
            extra=OF_CLIENTS,
            ge=1_000,
            description="Elements that the arrays of one request may have in total; beyond it INVALID_REQUEST,"
            " or the connection ends where a response cannot say so.",
        ),
    ] = field(default=10_000, name="request.max.elements")
    request_memory_bytes: Annotated[
        int,
        Meta(
            extra=OF_CLIENTS,
            ge=MIB,
            description="Bytes of requests in progress of every API but Produce; above this, others wait.",
        ),
    ] = field(default=64 * MIB, name="request.memory.bytes")
    reply_memory_bytes: Annotated[
        int,
        Meta(
            extra=OF_CLIENTS,
            ge=MIB,
            description="Bytes of replies that clients have not read; above this, further large ones wait.",
        ),
    ] = field(default=64 * MIB, name="reply.memory.bytes")

    # -- groups and fetch sessions
    group_memory_bytes: Annotated[
        int,
        Meta(
            extra=OF_CLIENTS,
            ge=MIB,
            description="Memory of the groups of one agent; beyond it GROUP_MAX_SIZE_REACHED for new members.",
        ),
    ] = field(default=64 * MIB, name="group.memory.bytes")
    group_member_max_bytes: Annotated[
        int,
        Meta(
            extra=OF_CLIENTS | goes("A subscription to 10,000 topics with names of 100 bytes fits into it."),
            ge=4_096,
            description="Subscription of one member of a group; beyond it INVALID_REQUEST.",
        ),
    ] = field(default=MIB, name="group.member.max.bytes")
    fetch_session_max_partitions: Annotated[
        PositiveInt,
        Meta(
            extra=OF_CLIENTS,
            description="Partitions in all fetch sessions of one agent; beyond it clients fetch without sessions.",
        ),
    ] = field(default=200_000, name="fetch.session.max.partitions")

    # == One value in the cluster

    # -- write path
    producer_id_expiration_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Producer state that is unused for this time is removed.")
    ] = field(default=86_400_000, name="producer.id.expiration.ms")
    transaction_max_timeout_ms: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="The longest transaction.timeout.ms that a producer may ask for; beyond it"
            " INVALID_TRANSACTION_TIMEOUT.",
        ),
    ] = field(default=900_000, name="transaction.max.timeout.ms")
    transactional_id_expiration_ms: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="A transactional id that is unused for this time is forgotten, but never one with an open"
            " transaction.",
        ),
    ] = field(default=604_800_000, name="transactional.id.expiration.ms")
    transaction_timed_out_interval_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="How often the active controller looks for transactions to abort.")
    ] = field(default=10_000, name="transaction.abort.timed.out.transaction.cleanup.interval.ms")
    transaction_expired_interval_ms: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="How often the active controller looks for transactional ids to forget."),
    ] = field(default=3_600_000, name="transaction.remove.expired.transaction.cleanup.interval.ms")
    file_delete_delay_ms: Annotated[
        NonNegativeInt,
        Meta(
            extra=CLUSTER,
            description="A segment file's object is deleted this long after its last live byte was removed, at the"
            " earliest 75 minutes after its commit. At least the age of the oldest metastore backup that may be"
            " restored.",
        ),
    ] = field(default=3_600_000, name="file.delete.delay.ms")
    segments_tombstone_retention_ms: Annotated[
        NonNegativeInt,
        Meta(
            extra=CLUSTER,
            description="A tombstone in `__remote_log_metadata` is removed after this time, as by delete.retention.ms.",
        ),
    ] = field(default=86_400_000, name="segments.tombstone.retention.ms")
    segments_audit_retention_ms: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="Records of `__remote_log_metadata_audit` are removed after this time."),
    ] = field(default=7_776_000_000, name="segments.audit.retention.ms")
    segments_cleanup_interval_ms: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="Pause between two rounds that end orphaned keys of remote segments."),
    ] = field(default=60_000, name="segments.cleanup.interval.ms")
    read_pin_max_ms: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="The longest time for which a Spark read or an export keeps its files (option readPinMs).",
        ),
    ] = field(default=86_400_000, name="read.pin.max.ms")

    # -- topics
    auto_create_topics_enable: Annotated[
        bool, Meta(extra=CLUSTER, description="Create a topic when a producer or consumer asks for its metadata.")
    ] = field(default=True, name="auto.create.topics.enable")
    max_topics: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="Topics of the cluster; beyond it POLICY_VIOLATION. Automatic creation may use half of it.",
        ),
    ] = field(default=10_000, name="max.topics")
    max_partitions: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="Partitions of the cluster; beyond it POLICY_VIOLATION. Automatic creation may use half.",
        ),
    ] = field(default=200_000, name="max.partitions")
    max_transactional_ids: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="Transactional ids of the cluster; beyond it POLICY_VIOLATION for new ones. Unused ones are"
            " forgotten after transactional.id.expiration.ms.",
        ),
    ] = field(default=1_000_000, name="max.transactional.ids")
    max_producer_states: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="Producers of all partitions, each counted once a partition; beyond it POLICY_VIOLATION for new"
            " producers. Those that are silent are forgotten after producer.id.expiration.ms.",
        ),
    ] = field(default=10_000_000, name="max.producer.states")
    max_committed_offsets: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="Committed offsets and groups of the cluster; beyond it POLICY_VIOLATION for new ones."
            " Unused ones are forgotten after offsets.retention.minutes.",
        ),
    ] = field(default=10_000_000, name="max.committed.offsets")
    num_partitions: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Default number of partitions of a new topic.")
    ] = field(default=1, name="num.partitions")
    halving_settle_ms: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="A topic that was halved doubles or halves again after this time at the earliest: longer than"
            " any producer's delivery.timeout.ms.",
        ),
    ] = field(default=300_000, name="halving.settle.ms")
    default_replication_factor: Annotated[
        int,
        Meta(
            extra=CLUSTER,
            ge=1,
            le=SHORT_MAX,
            description="Replication factor of a topic that is created without one. Only shown to clients: the object"
            " store replicates the data.",
        ),
    ] = field(default=1, name="default.replication.factor")
    replication_factor_strict: Annotated[
        bool,
        Meta(
            extra=CLUSTER,
            description="CreateTopics refuses a replication factor above the number of registered agents, as Kafka"
            " does. Otherwise any factor is accepted.",
        ),
    ] = field(default=False, name="replication.factor.strict")

    # -- addresses
    advertised_shared: Annotated[
        bool,
        Meta(
            extra=CLUSTER,
            description="All agents have one address, that of a load balancer: clients see one broker, and agents"
            " forward what needs one of them. Needs inter.broker.listener.name.",
        ),
    ] = field(default=False, name="advertised.shared")

    # -- membership and groups
    broker_session_timeout_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="An agent that does not renew its lease for this time is fenced.")
    ] = field(default=18_000, name="broker.session.timeout.ms")
    metadata_max_lag_records: Annotated[
        NonNegativeInt,
        Meta(
            extra=CLUSTER, description="An agent is unfenced only when it is at most this far behind the metadata log."
        ),
    ] = field(default=100, name="metadata.max.lag.records")
    controller_lease_ms: Annotated[
        int,
        Meta(
            extra=CLUSTER,
            ge=100,
            le=LONG_MAX,
            description="A standby controller takes over within this time after the active one fails.",
        ),
    ] = field(default=3_000, name="controller.lease.ms")
    metadata_snapshot_bytes: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="A metadata snapshot is written after this many bytes of log."),
    ] = field(default=20_971_520, name="metadata.log.max.record.bytes.between.snapshots")
    metadata_snapshot_interval_ms: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="A metadata snapshot is written after this time if there are new records.",
        ),
    ] = field(default=3_600_000, name="metadata.log.max.snapshot.interval.ms")
    group_min_session_timeout_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Shortest session timeout a member may request.")
    ] = field(default=6_000, name="group.min.session.timeout.ms")
    group_max_session_timeout_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Longest session timeout a member may request.")
    ] = field(default=1_800_000, name="group.max.session.timeout.ms")
    group_initial_rebalance_delay_ms: Annotated[
        NonNegativeInt,
        Meta(extra=CLUSTER, description="A new group waits this long for more members before its first rebalance."),
    ] = field(default=3_000, name="group.initial.rebalance.delay.ms")
    group_consumer_session_timeout_ms: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="A member of a consumer group (KIP-848) that sends no heartbeat for this time is removed.",
        ),
    ] = field(default=45_000, name="group.consumer.session.timeout.ms")
    group_consumer_min_session_timeout_ms: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="Smallest consumer.session.timeout.ms of a group."),
    ] = field(default=45_000, name="group.consumer.min.session.timeout.ms")
    group_consumer_max_session_timeout_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Largest consumer.session.timeout.ms of a group.")
    ] = field(default=60_000, name="group.consumer.max.session.timeout.ms")
    group_consumer_heartbeat_interval_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Heartbeat interval of the members of consumer groups (KIP-848).")
    ] = field(default=5_000, name="group.consumer.heartbeat.interval.ms")
    group_consumer_min_heartbeat_interval_ms: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="Smallest consumer.heartbeat.interval.ms of a group."),
    ] = field(default=5_000, name="group.consumer.min.heartbeat.interval.ms")
    group_consumer_max_heartbeat_interval_ms: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="Largest consumer.heartbeat.interval.ms of a group."),
    ] = field(default=15_000, name="group.consumer.max.heartbeat.interval.ms")
    group_consumer_max_size: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="Members of a consumer group at most; beyond it GROUP_MAX_SIZE_REACHED.",
        ),
    ] = field(default=2_147_483_647, name="group.consumer.max.size")
    group_consumer_assignors: Annotated[
        str,
        Meta(
            extra=CLUSTER,
            pattern="^(uniform|range)(,(uniform|range))*$",
            description="Server-side assignors that members may request; the first is the default.",
            extra_json_schema={"accepted": "uniform, range, separated by commas"},
        ),
    ] = field(default="uniform,range", name="group.consumer.assignors")
    group_consumer_migration_policy: Annotated[
        str,
        Meta(
            extra=CLUSTER,
            pattern="^(disabled|upgrade|downgrade|bidirectional)$",
            description="Directions in which a group with members may change between the two group protocols.",
            extra_json_schema={"accepted": "disabled, upgrade, downgrade, bidirectional"},
        ),
    ] = field(default="bidirectional", name="group.consumer.migration.policy")
    group_share_session_timeout_ms: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER, description=("A member of a share group that sends no heartbeat for this time is removed.")
        ),
    ] = field(default=45_000, name="group.share.session.timeout.ms")
    group_share_min_session_timeout_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Smallest share.session.timeout.ms of a group.")
    ] = field(default=45_000, name="group.share.min.session.timeout.ms")
    group_share_max_session_timeout_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Largest share.session.timeout.ms of a group.")
    ] = field(default=60_000, name="group.share.max.session.timeout.ms")
    group_share_heartbeat_interval_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Heartbeat interval of the members of share groups.")
    ] = field(default=5_000, name="group.share.heartbeat.interval.ms")
    group_share_min_heartbeat_interval_ms: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="Smallest share.heartbeat.interval.ms of a group."),
    ] = field(default=5_000, name="group.share.min.heartbeat.interval.ms")
    group_share_max_heartbeat_interval_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Largest share.heartbeat.interval.ms of a group.")
    ] = field(default=15_000, name="group.share.max.heartbeat.interval.ms")
    group_share_max_size: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description=("Members of a share group at most; beyond it GROUP_MAX_SIZE_REACHED.")),
    ] = field(default=200, name="group.share.max.size")
    group_share_delivery_count_limit: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description=(
                "A record of a share group is delivered at most so often; see "
                "docs/operate/GROUPS.md for what a killed agent adds."
            ),
        ),
    ] = field(default=5, name="group.share.delivery.count.limit")
    group_share_min_delivery_count_limit: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Smallest share.delivery.count.limit of a group.")
    ] = field(default=2, name="group.share.min.delivery.count.limit")
    group_share_max_delivery_count_limit: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Largest share.delivery.count.limit of a group.")
    ] = field(default=10, name="group.share.max.delivery.count.limit")
    group_share_record_lock_duration_ms: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="A record that a member of a share group acquired is its own for this time."),
    ] = field(default=30_000, name="group.share.record.lock.duration.ms")
    group_share_min_record_lock_duration_ms: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="Smallest share.record.lock.duration.ms of a group."),
    ] = field(default=15_000, name="group.share.min.record.lock.duration.ms")
    group_share_max_record_lock_duration_ms: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="Largest share.record.lock.duration.ms of a group."),
    ] = field(default=60_000, name="group.share.max.record.lock.duration.ms")
    group_share_partition_max_record_locks: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description=(
                "Records of a partition that one share group has in flight at most: from the first that is not done to"
                " the last that was acquired."
            ),
        ),
    ] = field(default=2_000, name="group.share.partition.max.record.locks")
    group_share_min_partition_max_record_locks: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="Smallest share.partition.max.record.locks of a group."),
    ] = field(default=100, name="group.share.min.partition.max.record.locks")
    group_share_max_partition_max_record_locks: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="Largest share.partition.max.record.locks of a group."),
    ] = field(default=4_000, name="group.share.max.partition.max.record.locks")
    group_share_max_share_sessions: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description=("Share sessions of an agent at most; beyond it SHARE_SESSION_LIMIT_REACHED."),
        ),
    ] = field(default=2_000, name="group.share.max.share.sessions")
    group_streams_session_timeout_ms: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="A member of a streams group without a heartbeat for this time is removed."),
    ] = field(default=45_000, name="group.streams.session.timeout.ms")
    group_streams_min_session_timeout_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Smallest streams.session.timeout.ms of a group.")
    ] = field(default=45_000, name="group.streams.min.session.timeout.ms")
    group_streams_max_session_timeout_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Largest streams.session.timeout.ms of a group.")
    ] = field(default=60_000, name="group.streams.max.session.timeout.ms")
    group_streams_heartbeat_interval_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Heartbeat interval of the members of streams groups.")
    ] = field(default=5_000, name="group.streams.heartbeat.interval.ms")
    group_streams_min_heartbeat_interval_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Smallest streams.heartbeat.interval.ms of a group.")
    ] = field(default=5_000, name="group.streams.min.heartbeat.interval.ms")
    group_streams_max_heartbeat_interval_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Largest streams.heartbeat.interval.ms of a group.")
    ] = field(default=15_000, name="group.streams.max.heartbeat.interval.ms")
    group_streams_max_size: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="Members of a streams group at most; beyond it GROUP_MAX_SIZE_REACHED."),
    ] = field(default=2_147_483_647, name="group.streams.max.size")
    group_streams_num_standby_replicas: Annotated[
        NonNegativeInt, Meta(extra=CLUSTER, description="Standbys of each task with state, in streams groups.")
    ] = field(default=0, name="group.streams.num.standby.replicas")
    group_streams_max_standby_replicas: Annotated[
        NonNegativeInt, Meta(extra=CLUSTER, description="Largest streams.num.standby.replicas of a group.")
    ] = field(default=2, name="group.streams.max.standby.replicas")
    group_streams_initial_rebalance_delay_ms: Annotated[
        NonNegativeInt,
        Meta(extra=CLUSTER, description="An empty streams group waits this long for more members before it assigns."),
    ] = field(default=3_000, name="group.streams.initial.rebalance.delay.ms")
    group_streams_assignment_interval_ms: Annotated[
        NonNegativeInt,
        Meta(extra=CLUSTER, description="Two assignments of a streams group are this far apart."),
    ] = field(default=1_000, name="group.streams.assignment.interval.ms")
    group_streams_min_assignment_interval_ms: Annotated[
        NonNegativeInt, Meta(extra=CLUSTER, description="Smallest streams.assignment.interval.ms of a group.")
    ] = field(default=0, name="group.streams.min.assignment.interval.ms")
    group_streams_max_assignment_interval_ms: Annotated[
        NonNegativeInt, Meta(extra=CLUSTER, description="Largest streams.assignment.interval.ms of a group.")
    ] = field(default=15_000, name="group.streams.max.assignment.interval.ms")
    group_max_size: Annotated[
        PositiveInt,
        Meta(extra=CLUSTER, description="Members of a classic group at most; beyond it GROUP_MAX_SIZE_REACHED."),
    ] = field(default=2_147_483_647, name="group.max.size")
    group_late_parent_ms: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="A group that has not committed up to the boundary of a split partition for this long is"
            " shown by headrace_group_late_seconds.",
        ),
    ] = field(default=300_000, name="group.late.parent.ms")
    offsets_retention_minutes: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="Committed offsets expire this long after their group became empty, or after their commit if"
            " no member consumes the topic.",
        ),
    ] = field(default=10_080, name="offsets.retention.minutes")
    offset_metadata_max_bytes: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="Maximum length of the metadata string of a committed offset.")
    ] = field(default=4_096, name="offset.metadata.max.bytes")

    # -- access
    delegation_token_max_lifetime_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="A delegation token cannot be renewed beyond this age.")
    ] = field(default=604_800_000, name="delegation.token.max.lifetime.ms")
    delegation_token_expiry_time_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="A delegation token that is not renewed expires after this time.")
    ] = field(default=86_400_000, name="delegation.token.expiry.time.ms")
    delegation_token_max_per_owner: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="Delegation tokens of one owner at a time; beyond it POLICY_VIOLATION for new ones.",
        ),
    ] = field(default=1_000, name="delegation.token.max.per.owner")

    # -- retention
    log_retention_check_interval_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="How often retention looks for records to delete.")
    ] = field(default=300_000, name="log.retention.check.interval.ms")

    # -- small files of topics with low.latency.enable: their bytes go into the metastore first
    low_latency_file_max_bytes: Annotated[
        int,
        Meta(
            extra=CLUSTER,
            ge=0,
            le=MIB,
            description="Larger files go into the bucket at once. 0: all of them.",
        ),
    ] = field(default=256 * 1024, name="low.latency.file.max.bytes")
    low_latency_max_bytes_per_second: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="Bytes per second that all agents together write into the metastore; what is beyond goes into"
            " the bucket at once.",
        ),
    ] = field(default=16 * MIB, name="low.latency.max.bytes.per.second")
    low_latency_held_max_bytes: Annotated[
        int,
        Meta(
            extra=CLUSTER,
            ge=64 * MIB,
            description="Bytes that may wait in the metastore to be moved; beyond them, files go into the bucket at"
            " once. From half of them on, they are moved sooner.",
        ),
    ] = field(default=1024 * MIB, name="low.latency.held.max.bytes")
    low_latency_move_ms: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="Files are moved from the metastore into the bucket after this time, and after up to"
            " compaction.interval.ms more.",
        ),
    ] = field(default=30_000, name="low.latency.move.ms")

    # -- background work
    compaction_interval_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="How often compaction looks for files to merge.")
    ] = field(default=15_000, name="compaction.interval.ms")
    log_cleaner_enable: Annotated[
        bool, Meta(extra=CLUSTER, description="Remove superseded records of topics with cleanup.policy=compact.")
    ] = field(default=True, name="log.cleaner.enable")
    log_cleaner_backoff_ms: Annotated[
        PositiveInt, Meta(extra=CLUSTER, description="How often log compaction by key looks for partitions to clean.")
    ] = field(default=15_000, name="log.cleaner.backoff.ms")
    log_cleaner_dedupe_buffer_size: Annotated[
        int,
        Meta(
            extra=CLUSTER,
            ge=1_048_576,
            le=LONG_MAX,
            description="Memory for the keys of one pass of log compaction by key, per job: 112 bytes per key. A pass"
            " ends where it is full.",
        ),
    ] = field(default=134_217_728, name="log.cleaner.dedupe.buffer.size")
    log_cleaner_io_max_bytes_per_second: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="Bytes per second that log compaction by key reads and writes in one process, within"
            " compactor.io.max.bytes.per.second. A change takes effect within 15 s, also in running jobs.",
        ),
    ] = field(default=LONG_MAX, name="log.cleaner.io.max.bytes.per.second")
    compaction_min_age_ms: Annotated[
        NonNegativeInt,
        Meta(
            extra=CLUSTER,
            description="Younger segment files are not compacted: consumers near the log end read them from caches.",
        ),
    ] = field(default=30_000, name="compaction.min.age.ms")
    compaction_max_age_ms: Annotated[
        PositiveInt,
        Meta(
            extra=CLUSTER,
            description="Flushed files are merged after at most this time; merged files are rewritten"
            " after six times this time.",
        ),
    ] = field(default=600_000, name="compaction.max.age.ms")
    compaction_file_bytes: Annotated[
        int,
        Meta(
            extra=CLUSTER,
            ge=1_048_576,
            le=1_073_741_824,
            description="Target size of compacted files; a job uses up to three times as much memory.",
        ),
    ] = field(default=67_108_864, name="compaction.file.bytes")
    compaction_spark_min_bytes: Annotated[
        NonNegativeInt,
        Meta(
            extra=CLUSTER,
            description="Compaction jobs of so many live bytes, and cleaning of partitions with more keys than"
            " log.cleaner.dedupe.buffer.size holds, are left to Spark; 0: none.",
        ),
    ] = field(default=0, name="compaction.spark.min.bytes")
    compaction_spark_max_wait_ms: Annotated[
        NonNegativeInt,
        Meta(
            extra=CLUSTER,
            description="After this time a job that Spark did not finish goes to this process.",
        ),
    ] = field(default=3_600_000, name="compaction.spark.max.wait.ms")

    # == Defaults of topics: one value in the cluster, and a topic may have another

    message_max_bytes: Annotated[
        PositiveInt, Meta(extra=TOPIC_DEFAULT, description="Largest record batch that is accepted.")
    ] = field(default=1_048_588, name="message.max.bytes")
    low_latency_enable: Annotated[
        bool,
        Meta(
            extra=TOPIC_DEFAULT,
            description="Small requests of producers are acknowledged in a few milliseconds, in topics without"
            " low.latency.enable (docs/operate/LOW_LATENCY.md).",
        ),
    ] = field(default=False, name="low.latency.enable")
    log_retention_ms: Annotated[
        AtLeastMinusOne | None,
        Meta(
            extra=TOPIC_DEFAULT,
            description="Records older than this are deleted, in topics without retention.ms; -1: never.",
        ),
    ] = field(default=None, name="log.retention.ms")
    log_retention_minutes: Annotated[
        AtLeastMinusOne | None, Meta(extra=TOPIC_DEFAULT, description="As log.retention.ms, which overrides it.")
    ] = field(default=None, name="log.retention.minutes")
    log_retention_hours: Annotated[
        AtLeastMinusOne,
        Meta(extra=TOPIC_DEFAULT, description="As log.retention.ms and log.retention.minutes, which override it."),
    ] = field(default=168, name="log.retention.hours")
    log_retention_bytes: Annotated[
        AtLeastMinusOne,
        Meta(
            extra=TOPIC_DEFAULT,
            description="A partition above this size loses its oldest records, without retention.bytes; -1: none.",
        ),
    ] = field(default=-1, name="log.retention.bytes")

    listener_overrides: Annotated[
        Mapping[str, Mapping[str, Any]],
        Meta(description="Listener -> setting -> value (config/listeners.py)."),
    ] = field(default_factory=dict, name="listener.name")
    set_that_go: Annotated[
        frozenset[str],
        Meta(description="Names of the settings that go and were set (config/cluster_values.py)."),
    ] = field(default=frozenset(), name="set.that.go")
