-- The last offset of the extent that active_since is the time of: behind a log start beyond it, another record is the first
-- of the active part. NULL: noted before this column was there.
ALTER TABLE cleaned_partitions ADD COLUMN active_offset bigint;
