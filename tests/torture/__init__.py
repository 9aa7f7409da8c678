"""`make torture`: real processes, four real clients and a seeded schedule of faults; nothing may be lost or doubled."""
