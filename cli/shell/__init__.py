"""`headrace shell`: the metadata image as directories, on a live cluster or a snapshot file."""
