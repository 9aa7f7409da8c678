-- The topics (by number) of the decided attempt: another topic under the same batch is refused. NULL: decided before.
ALTER TABLE bulk_writes ADD COLUMN topics bigint[];
