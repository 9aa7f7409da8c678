"""The partition counts of a topic, without a database: where keys go, and how the counts change.

Place: below the agents, metastore/postgres and clients, which store, serve and use what these modules define.
placement.py is the hash of Kafka's default partitioner, placement.py places keys and says which partitions give and
take keys, topic_partitions.py is what is recorded of a topic, changes.py plans each change as one transaction, and
waiting.py has the rules of readers. splitting.py is about doubling under clients that know only the count.

    initial count     how many partitions the topic was created with; never changes
    undeleted count   how many partitions take new records: those with a lower index
    marked            a partition that takes no new records and is removed once it is empty
    source, heir      the partition that a new one gets its keys from; the one that gets the keys of a marked one

Invariant: nothing here waits, reads a clock or draws a random number.
Source: KIP-253 (seed kip-253-partition-expansion); decisions/0049-partition-counts-change-in-one-transaction.md.
"""
