"""What the tools ask a Kafka cluster, one module per subject, by way of protocol/client/."""
