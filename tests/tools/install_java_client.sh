#!/usr/bin/env bash
# Kafka's own Java client for `make torture`: kafka-clients by Maven, and tests/tools/java compiled
# against it. Without it the torture run goes on with the other clients and says so.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
tools="${HEADRACE_TEST_TOOLS:-$HOME/.cache/headrace-test-tools}/java"
for program in mvn javac java; do
    if ! command -v "$program" >/dev/null; then
        echo "java client: skipped, $program is not here"
        exit 0
    fi
done
mkdir -p "$tools/classes"
mvn --quiet --batch-mode -f "$here/java/pom.xml" dependency:copy-dependencies "-DoutputDirectory=$tools/lib"
javac -d "$tools/classes" -cp "$tools/lib/*" "$here"/java/*.java
echo "java client: $tools"
