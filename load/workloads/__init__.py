"""What benchmarks and tests send, store and read: producers, readers, requests and files."""
