"""`headrace cluster`: cluster-id and unregister, over the Kafka protocol; Kafka's kafka-cluster.sh.

Place: a client like any other, beside a running cluster.
Invariant: unregistering twice is no error. If the process dies here, asking again is safe.
Source: KIP-631, kafka-cluster.sh.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kio.schema.describe_cluster.v0.request import DescribeClusterRequest
from kio.schema.describe_cluster.v0.response import DescribeClusterResponse
from kio.schema.types import BrokerId
from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
from kio.schema.unregister_broker.v0.response import UnregisterBrokerResponse

from cli.client.cluster import require
from cli.client.transport import ask, client_config

DESCRIPTION = """\
A running cluster: which one it is, and who is in it.

  headrace cluster cluster-id -b 127.0.0.1:9092
  headrace cluster unregister -i 3 -b 127.0.0.1:9092      an agent that will not come back
"""


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "cluster",
        help="ask a running cluster for its id, or unregister an agent",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="{cluster-id,unregister}", required=True)
    showing = commands.add_parser("cluster-id", help="print the cluster's id")
    showing.set_defaults(run=run_cluster_id)
    leaving = commands.add_parser("unregister", help="remove an agent's registration")
    leaving.add_argument("--id", "-i", type=int, required=True, metavar="ID", help="node id of the agent to unregister")
    leaving.set_defaults(run=run_unregister)
    for command in (showing, leaving):
        command.add_argument("--bootstrap-server", "-b", metavar="SERVERS", help="host:port pairs, comma-separated")
        command.add_argument("--config", "-c", type=Path, metavar="FILE", help="properties file of the admin client")


def run_cluster_id(args: argparse.Namespace) -> int:
    """Print it."""
    answer = ask(
        client_config(args.bootstrap_server, args.config),
        DescribeClusterRequest(include_cluster_authorized_operations=False),
        DescribeClusterResponse,
    )
    require(answer.error_code, answer.error_message)
    print(f"Cluster ID: {answer.cluster_id}")
    return 0


def run_unregister(args: argparse.Namespace) -> int:
    """Unregister; an id that is not registered counts as done."""
    answer = ask(
        client_config(args.bootstrap_server, args.config),
        UnregisterBrokerRequest(broker_id=BrokerId(args.id)),
        UnregisterBrokerResponse,
    )
    require(answer.error_code, answer.error_message)
    print(f"Broker {args.id} is no longer registered.")
    return 0
