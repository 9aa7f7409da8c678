#!/usr/bin/env bash
# Apache Kafka's server and its load generator for `headrace bench --kafka DIR`, by Maven; prints DIR.
# It needs Java 17 to run. Without Maven or Java it says so and changes nothing.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
jars="${1:-${HEADRACE_TEST_TOOLS:-$HOME/.cache/headrace-test-tools}/kafka/lib}"
for program in mvn java; do
    if ! command -v "$program" >/dev/null; then
        echo "kafka: skipped, $program is not here" >&2
        exit 0
    fi
done
mvn --quiet --batch-mode -f "$here/kafka/pom.xml" dependency:copy-dependencies "-DoutputDirectory=$jars" >&2
echo "$jars"
