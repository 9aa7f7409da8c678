"""The lifecycle of remote segments, without a database: keys, states, records, projections.

Place: keys.py and states.py are below metastore/api, which uses them in its rows; rendering.py and topics.py show
those rows.
keys.py names a segment, states.py says which change may follow which, records.py and partitioner.py are Kafka's
serialisation and placement, projection.py makes the current state of a stream of records.
Invariant: nothing here waits, reads a clock or draws a random number.
Source: KAFKA-20033 (seed remote-log-metadata-compaction).
"""
