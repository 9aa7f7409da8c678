"""Writes an Iceberg table: files, manifests, and one commit that is bound to the snapshot which it continues."""
