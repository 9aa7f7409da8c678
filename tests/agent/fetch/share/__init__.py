"""ShareFetch and ShareAcknowledge: sessions, codes, and records that are sent as they were acquired."""
