//go:build tools

// The programs that tests run, pinned by go.mod and checked against go.sum.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
