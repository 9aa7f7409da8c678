"""What agents say to each other: sealed messages over the Kafka listener, in separate channels."""
