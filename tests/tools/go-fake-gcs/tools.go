//go:build tools

// The program that tests run, pinned by go.mod and checked against go.sum.
package tools

import _ "github.com/fsouza/fake-gcs-server"
