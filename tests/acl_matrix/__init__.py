"""Each API as clients with different grants, on Headrace and on Apache Kafka."""
