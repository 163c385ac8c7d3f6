// Package health finds out which backends answer. A [Checker] is told all checks to make
// ([Checker.Set]), makes each again and again, and says what is known about every backend
// ([Checker.States], [Checker.Results]).
//
// A probe is sent to a backend from this host, as if from a client; every director of a group does
// so by itself. How probes get there is a [Path].
package health
