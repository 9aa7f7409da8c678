"""Opens values in processes that can be ended: one record costs one record."""
