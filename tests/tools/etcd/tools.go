//go:build tools

// The program that `python -m tests.kubernetes.programs` builds; its version is pinned by go.mod and go.sum.
// Debian's 3.4 lacks progress notifications, without which Kubernetes refuses the watches of Spark's client.
package tools

import _ "go.etcd.io/etcd/server/v3"
