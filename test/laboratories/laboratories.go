// Package laboratories names the packages of internal/ that are for tests, demo and benchmarks alone:
// users do not run them.
package laboratories

// Packages are the laboratories, by their paths in this module.
var Packages = []string{"internal/netlab", "internal/routerlab", "internal/etcdlab", "internal/memlab", "internal/packet", "internal/twin"}
