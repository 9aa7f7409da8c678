-- Where a child began when its topic doubled: readers that came to the parent since then begin there. It is not the log
-- start of a child that was a partition before. (No split was ever made by a request before this migration.)
ALTER TABLE partition_splits ADD COLUMN child_start bigint NOT NULL DEFAULT 0;
