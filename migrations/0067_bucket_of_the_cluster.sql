-- The bucket that has the cluster's files, so that another one, or a copy, is not taken for it (docs/decisions/0094).
ALTER TABLE cluster
    ADD COLUMN bucket_id         uuid,         -- as in the bucket's bucket.properties; NULL: not known yet
    ADD COLUMN bucket_address    text,         -- scheme, bucket and prefix under which it was confirmed
    ADD COLUMN bucket_adopted_at timestamptz; -- an operator has accepted what it lacks of files that are older
