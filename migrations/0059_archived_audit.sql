-- Which objects of the bucket hold the older part of the audit trail (decisions/0073). The records of a metadata
-- partition below its first row in remote_segment_events are in the objects that are not due, from its audit_start on.
CREATE TABLE archived_audit (
    metadata_partition  smallint     NOT NULL,
    last_offset         bigint       NOT NULL,   -- audit offsets, both inclusive
    first_offset        bigint       NOT NULL,
    records             int          NOT NULL,
    newest_ms           bigint       NOT NULL,   -- the latest event_ms of its records
    bytes               int          NOT NULL,   -- of the object
    index_bytes         int          NOT NULL,   -- of the index at its end
    epoch               bigint       NOT NULL,   -- of the lease that wrote it; in the object's key
    due_at              timestamptz,             -- since when no reader needs it: joined, or below audit_start
    PRIMARY KEY (metadata_partition, last_offset, first_offset)
);
CREATE INDEX archived_audit_due ON archived_audit (due_at) WHERE due_at IS NOT NULL;
