"""Agents: registration, heartbeats, leaving.

Place: every agent, from its start to its stop; part of ClusterApi.
Invariant: one call of one server-side function writes records and projection together (C1). A broker epoch
is the log offset of its registration, put into the record under the head's lock.
"""

from __future__ import annotations

from headrace.metastore.api.agents import AgentRegistration, HeartbeatAnswer, Listener, RegisteredAgent
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.log.kip631_records import BrokerEndpoint, BrokerFeature, RegisterBrokerRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement
from headrace.storage.errors import (
    AlreadyExistsError,
    FencedError,
    InvalidError,
    UnsupportedFeatureError,
    WrongClusterError,
)

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
