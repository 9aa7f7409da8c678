"""The cluster in Postgres: the metadata log, agents, broker configs set at run time, the agents' shared secret.

Place: part of ClusterApi. Every agent's follower and the admin requests use the log; an agent registers at its
start, renews its lease, and leaves at its stop. Background workers, which follow no metadata log, ask for the
configs now and then.
Invariant: an append is one call of one server-side function, which takes the log head's lock and writes records and
projection together: no reader sees one without the other (C1).
Invariant of agents: one call of one server-side function writes records and projection together (C1). A broker epoch
is the log offset of its registration, put into the record under the head's lock.
Invariant of configs and secret: only the secret is written here: sealed from the first seal_zone_secret on. The
configs are the log's own projection, written with its records.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from headrace.metastore.api.agents import AgentRegistration, HeartbeatAnswer, Listener, RegisteredAgent
from headrace.metastore.api.cluster import (
    ClusterApi,
    MetadataLogApi,
    MetadataRecord,
    Rotation,
    StoredSnapshot,
    ZoneSecret,
)
from headrace.metastore.log.features import required_format
from headrace.metastore.log.kip631_records import (
    AccessControlRecord,
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    DelegationTokenRecord,
    FailedReplicasRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    QuotaRecord,
    RegisterBrokerRecord,
    UserScramCredentialRecord,
)
from headrace.metastore.log.own_records import (
    DoubleTopicRecord,
    RemoveAccessControlRecord,
    RemoveDelegationTokenRecord,
    RemoveFeatureLevelRecord,
    RemoveUserScramCredentialRecord,
    UserScramKeysRecord,
)
from headrace.metastore.log.records import encode_record, refuse_large
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement
from headrace.metastore.sealing import KEY_BYTES, Sealing, is_sealed
from headrace.storage.errors import (
    AlreadyExistsError,
    FencedError,
    InvalidError,
    TruncatedError,
    UnavailableError,
    UnsupportedFeatureError,
    WrongClusterError,
)

NO_CHANGE = -2
"""Leader of a PartitionChangeRecord that says nothing about it."""
_APPENDABLE = (
    PartitionChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    RemoveFeatureLevelRecord,
    FailedReplicasRecord,
    AccessControlRecord,
    RemoveAccessControlRecord,
    UserScramCredentialRecord,
    UserScramKeysRecord,
    RemoveUserScramCredentialRecord,
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
    QuotaRecord,
    DoubleTopicRecord,
)

_READ_METADATA = Statement("read_metadata", writes=False)
_NEWEST_SNAPSHOT = Statement("newest_snapshot", writes=False)
_APPEND_RECORDS = Statement("append_records", writes=True)


class PostgresMetadataLog(PostgresNoun):
    """Reading and appending."""

    metadata_head = calls(MetadataLogApi.metadata_head, writes=False)
    metadata_log_start = calls(MetadataLogApi.metadata_log_start, writes=False)

    async def read_metadata(self, start_offset: int, limit: int = 10_000) -> list[bytes]:
        """Read up to `limit` framed records from `start_offset` on; TruncatedError when they are no
        longer kept.
        """
        rows = await _READ_METADATA.rows(self.pool, start_offset=start_offset, record_count=limit)
        if rows and rows[0][0] != start_offset:
            raise TruncatedError(
                f"metadata log starts later: start from a snapshot: asked={start_offset} kept={rows[0][0]}"
            )
        return [record for _, record in rows]

    async def newest_snapshot(self) -> StoredSnapshot | None:
        """Return None when there is none yet."""
        rows = await _NEWEST_SNAPSHOT.rows(self.pool)
        return StoredSnapshot(*rows[0]) if rows else None

    async def append_records(
        self, expected_head: int, records: Sequence[MetadataRecord], *, controller_epoch: int | None = None
    ) -> bool:
        """False when the head is not `expected_head`; InvalidError for a type that has a separate operation."""
        for record in records:
            _refuse_unprojected(record)
        refuse_large(records)
        changes = [record for record in records if isinstance(record, PartitionChangeRecord)]
        features = [record for record in records if isinstance(record, FeatureLevelRecord | RemoveFeatureLevelRecord)]
        levels = [record if isinstance(record, FeatureLevelRecord) else None for record in features]
        configs = [record for record in records if isinstance(record, ConfigRecord)]
        (appended,) = await _APPEND_RECORDS.row(
            self.pool,
            controller_epoch=controller_epoch,
            expected_head=expected_head,
            records=[encode_record(record) for record in records],
            format=required_format(records),
            topic_ids=[change.topic_id for change in changes],
            indexes=[change.partition_id for change in changes],
            feature_names=[feature.name for feature in features],
            feature_mins=[level and level.min_feature_level for level in levels],
            feature_maxs=[level and level.max_feature_level for level in levels],
            config_types=[config.resource_type for config in configs],
            config_resources=[config.resource_name for config in configs],
            config_names=[config.name for config in configs],
            config_values=[config.value for config in configs],
        )
        if appended is None:
            raise FencedError(f"controller epoch is stale: controller_epoch={controller_epoch}")
        return bool(appended)


def _refuse_unprojected(record: MetadataRecord) -> None:
    """The tables would no longer say what the log says."""
    moves_data = isinstance(record, PartitionChangeRecord) and (record.leader != NO_CHANGE or record.isr is not None)
    if not isinstance(record, _APPENDABLE) or moves_data:
        raise InvalidError(f"record cannot be appended by itself: record={record}")


PLAINTEXT = 0
"""SecurityProtocol of an endpoint."""

_REGISTER_AGENT = Statement("register_agent", writes=True)
_HEARTBEAT = Statement("heartbeat_at", writes=True)


class PostgresAgents(PostgresNoun):
    """An agent's own calls."""

    unregister_agent = calls(ClusterApi.unregister_agent, writes=True)

    async def register_agent(self, registration: AgentRegistration) -> RegisteredAgent:
        """AlreadyExistsError while the node id's holder may be alive: until a session timeout after its last contact.

        WrongClusterError and UnsupportedFeatureError as ClusterApi says.
        """
        own = registration
        refusal, detail, node_id, broker_epoch = await _REGISTER_AGENT.row(
            self.pool,
            node_id=own.node_id,
            incarnation_id=own.incarnation_id,
            host=own.host,
            port=own.port,
            rack=own.rack,
            record=encode_record(_register_record(own)),
            session_timeout_ms=self.settings.broker_session_timeout_ms,
            cluster_id=own.cluster_id,
            feature_names=list(own.features),
            feature_mins=[levels.min_level for levels in own.features.values()],
            feature_maxs=[levels.max_level for levels in own.features.values()],
        )
        match refusal:
            case "cluster":
                raise WrongClusterError(f"this is another cluster: asked={own.cluster_id}")
            case "feature":
                raise UnsupportedFeatureError(
                    f"the cluster uses a feature level that the agent lacks: feature={detail}"
                )
            case "node id":
                raise AlreadyExistsError(f"node id is in use by another incarnation: node_id={node_id}")
        return RegisteredAgent(node_id, broker_epoch)

    async def heartbeat(
        self,
        node_id: int,
        broker_epoch: int,
        *,
        metadata_offset: int,
        want_fence: bool,
        want_shut_down: bool = False,
        session_timeout_ms: int,
    ) -> HeartbeatAnswer:
        """FencedError for a stale epoch."""
        row = await _HEARTBEAT.row(
            self.pool,
            node_id=node_id,
            broker_epoch=broker_epoch,
            metadata_offset=metadata_offset,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
            session_timeout_ms=session_timeout_ms,
            max_lag=self.settings.metadata_max_lag_records,
        )
        if row[0] is None:
            raise FencedError(f"agent is not registered so: node_id={node_id} broker_epoch={broker_epoch}")
        self.pool.committed()
        return HeartbeatAnswer(*row)


def _register_record(own: AgentRegistration) -> RegisterBrokerRecord:
    """Broker id and epoch are put in by register_agent.sql."""
    listeners = own.listeners or (Listener("PLAINTEXT", own.host, own.port, PLAINTEXT),)
    if listeners[0][1:3] != (own.host, own.port):
        raise InvalidError(f"the first listener is not the one for clients: listener={listeners[0]} host={own.host}")
    return RegisterBrokerRecord(
        broker_id=0,
        incarnation_id=own.incarnation_id,
        broker_epoch=0,
        end_points=tuple(
            BrokerEndpoint(name=name, host=host, port=port, security_protocol=protocol)
            for name, host, port, protocol in listeners
        ),
        features=tuple(
            BrokerFeature(name=name, min_version=levels.min_level, max_version=levels.max_level)
            for name, levels in own.features.items()
        ),
        rack=own.rack,
    )


_CLUSTER_CONFIGS = Statement("cluster_configs", writes=False)
_ZONE_SECRET = Statement("zone_secret", writes=False)
_ROTATE_ZONE_SECRET = Statement("rotate_zone_secret", writes=True)
_SEAL_ZONE_SECRET = Statement("seal_zone_secret", writes=True)


class PostgresClusterFacts(PostgresNoun):
    """Implements what ClusterApi says of configs and of the secret."""

    async def cluster_configs(self) -> dict[str, str]:
        return dict(await _CLUSTER_CONFIGS.rows(self.pool))

    async def zone_secret(self) -> ZoneSecret:
        own, other = await self._stored_secrets()
        return ZoneSecret(self._opened(own), None if other is None else self._opened(other))

    async def rotate_zone_secret(self) -> Rotation:
        new = secrets.token_bytes(KEY_BYTES)
        own, _ = await self._stored_secrets()
        stored = self._sealed(new) if is_sealed(own) else new
        step, waits_for = await _ROTATE_ZONE_SECRET.row(self.pool, new=stored)
        return Rotation(step, tuple(waits_for))

    async def seal_zone_secret(self, *, renew: bool) -> bool:
        before = await self._stored_secrets()
        sealing = Sealing(self.settings.metadata_secret_keys)
        if all(value is None or sealing.is_current(value) for value in before):
            return False
        own, other = (None if value is None else self._sealed(self._opened(value)) for value in before)
        if renew and not is_sealed(before[0]):
            own = self._sealed(secrets.token_bytes(KEY_BYTES))
        (done,) = await _SEAL_ZONE_SECRET.row(
            self.pool, own_before=before[0], own=own, other_before=before[1], other=other
        )
        if not done:
            raise UnavailableError("the zone secret was changed meanwhile: repeat the command")
        return True

    async def _stored_secrets(self) -> tuple[bytes, bytes | None]:
        own, other = await _ZONE_SECRET.row(self.pool)
        return bytes(own), None if other is None else bytes(other)

    def _sealed(self, value: bytes) -> bytes:
        return Sealing(self.settings.metadata_secret_keys).seal(value, "zone", self.cluster_id)

    def _opened(self, stored: bytes) -> bytes:
        if not is_sealed(stored):
            return stored
        return Sealing(self.settings.metadata_secret_keys).open(stored, "zone", self.cluster_id)
