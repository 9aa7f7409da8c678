-- Records without a timestamp are as old as their commit, also once they lie in a merged file, whose row is
-- younger: the newest such commit among an extent's inputs. NULL: as it was committed, its file's row says it.
ALTER TABLE extents ADD COLUMN appended_at timestamptz;
