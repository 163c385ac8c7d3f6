// Package health finds out which backends answer. A [Checker] is told all checks that
// are to be made ([Checker.Set]), makes each again and again, and says what is known of
// every backend ([Checker.States], [Checker.Results]).
//
// A probe is sent to a backend from this host, as a client of its own; every director
// of a group does so by itself. How probes get there is a [Path].
package health
