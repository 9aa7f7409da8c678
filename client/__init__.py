"""A producer and a consumer that keep the order of each key while the number of partitions changes (KIP-253).

Place: for applications; needs a cluster of Headrace, and nothing else of this project at run time but the wire format,
the record codec and the rules of metastore/partitions. aiokafka opens the connections (TLS, SASL).

    producer.py          records -> topic_queue.py (places, batches, sequences) -> sending.py
      offsets.py      nulls to the partitions that had a key before, on compacted topics
    consumer.py          getmany: rebalances, reports, delivery, in this order
      membership.py      KIP-848: the server assigns; ownership.py: what is taken and given back, with the callbacks
      fetching.py        a long poll per agent; order.py decides what may be delivered
      group_positions.py reports to the group's coordinator, and its answers
    cluster.py           connections, topics with their counts, coordinators; messages.py has the requests
    offsets.py           questions about offsets, epochs and what a partition was created from

Invariant: two records of one key and one producer are delivered in the order in which they were sent. The rules are
those of metastore/partitions/waiting.py and placement.py, which tests/key_order/partition_order.py tests with planted
bugs.
Source: KIP-253; decisions/0049, decisions/0051.
"""

from headrace.client.cluster import ClientSettings
from headrace.client.consumer import OrderedConsumer
from headrace.client.listeners import PartitionKeyListener, RebalanceListener
from headrace.client.producer import OrderedProducer

__all__ = ["ClientSettings", "OrderedConsumer", "OrderedProducer", "PartitionKeyListener", "RebalanceListener"]
