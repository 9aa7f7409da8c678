//go:build tools

// The programs that `python -m tests.kubernetes.programs` builds; versions are pinned by go.mod and go.sum.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
