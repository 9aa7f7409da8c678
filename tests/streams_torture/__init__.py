"""An application of Kafka Streams under faults: `make torture-streams`."""
