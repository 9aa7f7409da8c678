"""What a client may do: Kafka's ACLs, enforced.

Place: between agent/apis/dispatch and the handlers. rule.py wraps each handler with the rule of its API (agent/apis);
Produce, Fetch, Metadata and consumer groups with patterns ask by themselves.
Invariant: no request of a client reaches a handler without a rule for its API. Rules are those of Kafka's
StandardAuthorizer, KafkaApis and ControllerApis.
"""
