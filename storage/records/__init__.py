"""Record batch v2 (KIP-98): header, checksum, patching, and opening records through a library."""
