// Package apiserver names what of Kubernetes the tests run, the API server, the controllers and
// kube-proxy, which "make test-kubernetes" builds from this module. It is a module of its own: nothing of weir's
// depends on Kubernetes' server.
package apiserver

import (
	// Their main packages cannot be imported.
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	_ "k8s.io/kubernetes/cmd/kube-proxy/app"
)
