-- A look-up has one budget for all its partitions: two parameters more.
DROP FUNCTION IF EXISTS find_extents(bigint[], bigint[], bigint[]);
