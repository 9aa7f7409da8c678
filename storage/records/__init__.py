"""Record batch v2 (KIP-98): header, checksum, patching, and a codec for records."""
