#!/usr/bin/env bash
# Replaces kafkajs's script of this name, which asks a Docker container: TOPIC gets PARTITIONS partitions.
set -euo pipefail
exec "$HEADRACE_PYTHON" -m cli.main topics alter "$TOPIC" --partitions "$PARTITIONS" --bootstrap-server "$BOOTSTRAP"
