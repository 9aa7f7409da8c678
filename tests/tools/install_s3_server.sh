#!/usr/bin/env bash
# A real S3-compatible server for the store contract: Versity S3 Gateway (Apache-2.0), built by Go from its
# module name. About a minute and a half, and 80 MB. Without it those tests skip and say so.
set -euo pipefail
tools="${HEADRACE_TEST_TOOLS:-$HOME/.cache/headrace-test-tools}"
version="${VERSITYGW_VERSION:-latest}"
if ! command -v go >/dev/null; then
    echo "versitygw: skipped, a Go toolchain is not here"
    exit 0
fi
mkdir -p "$tools/bin"
GOBIN="$tools/bin" go install "github.com/versity/versitygw/cmd/versitygw@$version"
echo "versitygw: $tools/bin/versitygw"
