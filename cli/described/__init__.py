"""A cluster described in files: read the files, compare them with a cluster, and make the cluster like them."""
