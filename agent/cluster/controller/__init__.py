"""The active controller's work: fencing, reassignments, snapshots, lag, late transactions."""
