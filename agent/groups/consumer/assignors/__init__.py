"""Who gets which partition: pure functions, one file each."""
