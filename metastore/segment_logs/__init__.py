"""The lifecycle of remote segments, without a database: records, projections, topics.

Place: above metastore/api, where a segment's key and its states are (segment_states.py); rendering.py and topics.py
show the rows of metastore/api/segments.py. records.py has Kafka's serialisation and placement, projection.py makes the
current state of a stream of records.
Invariant: nothing here waits, reads a clock or draws a random number.
Source: KAFKA-20033 (seed remote-log-metadata-compaction).
"""
