"""Authenticate clients: TLS on listeners, principals of certificates, SASL.

Place: between the sockets of agent/listener and agent/apis/dispatch.
Invariant: on a listener with TLS no byte leaves the process unencrypted. On a listener with SASL only
ApiVersions, SaslHandshake and SaslAuthenticate are served before a client has authenticated.
"""
