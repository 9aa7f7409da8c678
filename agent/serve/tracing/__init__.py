"""Spans of OpenTelemetry for produce and fetch, if otel.enable is true."""
