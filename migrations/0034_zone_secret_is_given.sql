-- The secret between agents is drawn and sealed by the caller: the function that drew it is replaced.
DROP FUNCTION IF EXISTS rotate_zone_secret();
