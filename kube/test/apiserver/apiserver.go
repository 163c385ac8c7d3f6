// Package apiserver names the programs of Kubernetes that the tests run: the API server, the
// controllers and kube-proxy. "make test-kubernetes" builds them from this module. It is a separate
// module: nothing in weir depends on Kubernetes' server.
package apiserver

import (
	// Their main packages cannot be imported.
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	_ "k8s.io/kubernetes/cmd/kube-proxy/app"
)
