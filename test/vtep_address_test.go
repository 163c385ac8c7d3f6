package test

import (
	"testing"

	"weir.io/weir/internal/model"
)

// A VTEP whose address goes, or that is none of its host's in another version of the file, says so until it has one.
func TestVTEPAddressThatTheHostLacks(t *testing.T) {
	t.Parallel()
	u := newUnderlay(t, "vxlan", false)
	d := startDaemon(t, u.director, "run", u.file("  []\n"))
	lacks := func(is bool) func() bool {
		return func() bool { return d.hasProblem(model.ProblemHost, "is on no interface of this host") == is }
	}
	own := u.vtep(directorHost).String() + "/24"
	on(t, u.director, "ip", "addr", "del", own, "dev", "eth0")
	d.waitFor("miss the address", lacks(true))
	on(t, u.director, "ip", "addr", "add", own, "dev", "eth0")
	d.waitFor("have it again", lacks(false))
	d.edit("director: {interfaces: [eth0], vtep: {addresses: [192.0.2.77]}}\nservices: []\n")
	d.waitFor("miss that of the new file", lacks(true))
}
