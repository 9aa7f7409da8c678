-- Numbers that SQL and Python share, by name. Python's side: the enums of metastore/api/ and the record types of
-- metastore/log/records.py (tests/metastore/test_names.py compares them). Most of them are stored: never reuse one.
-- The planner puts the number in the place of each call, so partial indexes and plans are those of the numbers.
-- Locks: none. Idempotent: pure. Cost: none.

-- jobs.state: metastore.api.jobs.JobState
CREATE OR REPLACE FUNCTION job_waiting() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 0;
CREATE OR REPLACE FUNCTION job_leased() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1;
CREATE OR REPLACE FUNCTION job_done() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 2;
CREATE OR REPLACE FUNCTION job_given_up() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 3;

-- segment_files.state: metastore.api.files.FileState
CREATE OR REPLACE FUNCTION file_live() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 0;
CREATE OR REPLACE FUNCTION file_condemned() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1;
CREATE OR REPLACE FUNCTION file_deleting() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 2;
CREATE OR REPLACE FUNCTION file_staged() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 3;

-- What became of a file in a commit: metastore.api.commit.FileStatus
CREATE OR REPLACE FUNCTION commit_committed() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 0::smallint;
CREATE OR REPLACE FUNCTION commit_agent_fenced() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1::smallint;
CREATE OR REPLACE FUNCTION commit_condemned() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 2::smallint;
CREATE OR REPLACE FUNCTION commit_too_old() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 3::smallint;

-- What became of a batch: metastore.api.commit.BatchOutcome
CREATE OR REPLACE FUNCTION batch_appended() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 0;
CREATE OR REPLACE FUNCTION batch_duplicate() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1;
CREATE OR REPLACE FUNCTION batch_out_of_order() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 2;
CREATE OR REPLACE FUNCTION batch_producer_fenced() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 3;
CREATE OR REPLACE FUNCTION batch_unknown_partition() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 4;
CREATE OR REPLACE FUNCTION batch_partition_count_mismatch() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 5;
CREATE OR REPLACE FUNCTION batch_leader_epoch_mismatch() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 6;
CREATE OR REPLACE FUNCTION batch_duplicate_sequence() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 7;

-- What became of a bulk write: metastore.api.bulk.BulkOutcome
CREATE OR REPLACE FUNCTION bulk_decided() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 0::smallint;
CREATE OR REPLACE FUNCTION bulk_previous_unfinished() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1::smallint;
CREATE OR REPLACE FUNCTION bulk_not_staged() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 2::smallint;
CREATE OR REPLACE FUNCTION bulk_unknown_partition() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 3::smallint;
CREATE OR REPLACE FUNCTION bulk_files_too_old() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 4::smallint;

-- commit_log.kind: metastore.api.read.FeedKind
CREATE OR REPLACE FUNCTION feed_commit() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 0::smallint;
CREATE OR REPLACE FUNCTION feed_log_start() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1::smallint;
CREATE OR REPLACE FUNCTION feed_swap() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 2::smallint;
CREATE OR REPLACE FUNCTION feed_topic_deleted() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 3::smallint;

-- What became of a swap: metastore.api.compaction.SwapOutcome
CREATE OR REPLACE FUNCTION swap_done() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 0::smallint;
CREATE OR REPLACE FUNCTION swap_lost() RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1::smallint;

-- Timestamps of ListOffsets that are none: metastore.api.read.OffsetKind
CREATE OR REPLACE FUNCTION offset_latest() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN -1;
CREATE OR REPLACE FUNCTION offset_earliest() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN -2;
CREATE OR REPLACE FUNCTION offset_max_timestamp() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN -3;

-- configs.resource_type: Kafka's
CREATE OR REPLACE FUNCTION topic_resource() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 2;
CREATE OR REPLACE FUNCTION broker_resource() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 4;

-- Types of metadata records that SQL makes itself: metastore.log.records
CREATE OR REPLACE FUNCTION record_unregister_broker() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1;
CREATE OR REPLACE FUNCTION record_fence_broker() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 7;
CREATE OR REPLACE FUNCTION record_unfence_broker() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 8;
CREATE OR REPLACE FUNCTION record_controlled_shutdown() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 104;
CREATE OR REPLACE FUNCTION record_hide_broker() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 105;
CREATE OR REPLACE FUNCTION record_show_broker() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 106;
