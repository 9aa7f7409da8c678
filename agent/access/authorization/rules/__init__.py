"""What each API needs, by constants that the rows of agent/serve/handlers.py name.

Source: Kafka 4.1, KafkaApis and ControllerApis.
"""
