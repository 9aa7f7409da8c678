-- Counts the records of each key, exactly once: sql-client.sh -f counts.sql
-- The topics `flink-words` and `flink-counted` must be there.
SET 'execution.checkpointing.interval' = '1 s';
SET 'execution.checkpointing.dir' = 'file:///tmp/flink-checkpoints';
SET 'execution.checkpointing.externalized-checkpoint-retention' = 'RETAIN_ON_CANCELLATION';

CREATE TABLE words (word STRING, number STRING) WITH (
  'connector' = 'kafka',
  'topic' = 'flink-words',
  'properties.bootstrap.servers' = '127.0.0.1:9092',
  'properties.group.id' = 'flink-counts',
  'properties.isolation.level' = 'read_committed',
  'scan.startup.mode' = 'earliest-offset',
  'key.format' = 'raw',
  'key.fields' = 'word',
  'value.format' = 'raw',
  'value.fields-include' = 'EXCEPT_KEY'
);

-- Flink asks for a transaction timeout of an hour; a cluster allows transaction.max.timeout.ms, 15 minutes.
CREATE TABLE counted (word STRING, records STRING, PRIMARY KEY (word) NOT ENFORCED) WITH (
  'connector' = 'upsert-kafka',
  'topic' = 'flink-counted',
  'properties.bootstrap.servers' = '127.0.0.1:9092',
  'properties.transaction.timeout.ms' = '600000',
  'key.format' = 'raw',
  'value.format' = 'raw',
  'value.fields-include' = 'EXCEPT_KEY',
  'sink.delivery-guarantee' = 'exactly-once',
  'sink.transactional-id-prefix' = 'flink-counts'
);

INSERT INTO counted SELECT word, CAST(COUNT(*) AS STRING) FROM words GROUP BY word;
