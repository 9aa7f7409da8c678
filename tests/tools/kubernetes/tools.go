//go:build tools

// The programs that `python -m tests.kubernetes.programs` builds; versions are pinned by go.mod and go.sum.
// The repository of Kubernetes itself cannot be built by `go install`, because its go.mod replaces the staging
// modules by folders; this module replaces them by their published versions.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
