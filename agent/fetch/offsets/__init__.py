"""Offsets by time and by leader epoch: ListOffsets and OffsetForLeaderEpoch."""
