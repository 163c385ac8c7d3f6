// Package apiserver names the Kubernetes API server that tests run, which "make
// test-kubernetes" builds from this module. It is a module of its own: nothing of weir's
// depends on Kubernetes' server.
package apiserver

import _ "k8s.io/kubernetes/cmd/kube-apiserver/app" // its main package cannot be imported
