#!/usr/bin/env bash
# Optional Kafka clients for tests/compat: kafkajs (npm) and kcat (Debian). Tests skip without them.
set -euo pipefail
tools="${HEADRACE_TEST_TOOLS:-$HOME/.cache/headrace-test-tools}"
mkdir -p "$tools"
if command -v npm >/dev/null; then
    npm install --silent --no-fund --no-audit --prefix "$tools" kafkajs@2.2.4
    echo "kafkajs: $tools/node_modules"
else
    echo "kafkajs: skipped, npm is not here"
fi
if command -v kcat >/dev/null; then
    echo "kcat: $(command -v kcat)"
elif command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get install -y -qq kcat >/dev/null || { apt-get update -qq && apt-get install -y -qq kcat >/dev/null; }
    echo "kcat: $(command -v kcat)"
else
    echo "kcat: skipped; install it with your package manager"
fi
