"""`headrace cluster`: cluster-id and unregister, over the Kafka protocol; Kafka's kafka-cluster.sh.

Place: a Kafka client for a running cluster. described/ has plan, apply, export and schema.
Invariant: an unknown node id is an error; unregistering can be repeated safely.
Source: KIP-631, kafka-cluster.sh.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from headrace.cli.client.cluster import KafkaCluster, require
from headrace.cli.described.command import add_commands
from headrace.cli.numbers import INT32_MAX, whole
from headrace.cli.output import write
from headrace.cli.tables import open_cluster
from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import NotFoundError

TELLS_OF_FENCED_BROKERS = 2
"""The first version of DescribeCluster with a response that can list every registered broker."""

DESCRIPTION = """\
A running cluster: show its id, unregister an agent, or make it what files describe.

  headrace cluster cluster-id -b 127.0.0.1:9092
  headrace cluster export -b 127.0.0.1:9092 > cluster.yaml
  headrace cluster plan -f cluster.yaml -b 127.0.0.1:9092
  headrace cluster apply -f cluster.yaml -b 127.0.0.1:9092
  headrace cluster schema > cluster-file.schema.json
  headrace cluster unregister -i 3 -b 127.0.0.1:9092      an agent that will not return
"""


ACTIONS = "{cluster-id,unregister,plan,apply,export,schema}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar=ACTIONS, required=True)
    showing = commands.add_parser("cluster-id", help="print the cluster's id")
    showing.set_defaults(run=run_cluster_id)
    leaving = commands.add_parser("unregister", help="remove the registration of an agent")
    node_id = whole(0, INT32_MAX)
    leaving.add_argument("--id", "-i", type=node_id, required=True, metavar="ID", help="node id of the agent")
    leaving.set_defaults(run=run_unregister)
    for command in (showing, leaving):
        command.add_argument("--bootstrap-server", "-b", metavar="SERVERS", help="host:port pairs, comma-separated")
        command.add_argument(
            "--config", "--command-config", "-c", type=Path, metavar="FILE", help="properties file of the admin client"
        )
    add_commands(commands)


def run_cluster_id(args: argparse.Namespace) -> int:
    """Print the id."""
    with open_cluster(args) as cluster:
        write(f"Cluster ID: {_describe(cluster).cluster_id}")
    return 0


def run_unregister(args: argparse.Namespace) -> int:
    """Unregister the agent; NotFoundError if it is not registered, even where the cluster would accept the
    request.
    """
    with open_cluster(args) as cluster:
        tells = cluster.message(ApiKey.DESCRIBE_CLUSTER).version >= TELLS_OF_FENCED_BROKERS
        if tells and args.id not in {broker.broker_id for broker in _describe(cluster).brokers}:
            raise NotFoundError(f"broker {args.id} is not registered")
        m = cluster.message(ApiKey.UNREGISTER_BROKER)
        answer = cluster.ask(ApiKey.UNREGISTER_BROKER, m.request(broker_id=args.id))
        require(answer.error_code, answer.error_message, f"broker {args.id}")
    write(f"Broker {args.id} is no longer registered.")
    return 0


def _describe(cluster: KafkaCluster) -> Any:
    """The cluster, with all registered brokers if the cluster supports that."""
    m = cluster.message(ApiKey.DESCRIBE_CLUSTER)
    request = m.request(include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=True)
    answer = cluster.ask(ApiKey.DESCRIBE_CLUSTER, request)
    require(answer.error_code, answer.error_message)
    return answer
