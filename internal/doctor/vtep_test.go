package doctor_test

import (
	"testing"

	"weir.io/weir/internal/doctor"
)

// The addresses of a VTEP are this host's: a process that runs is told when one goes.
func TestVTEPAddresses(t *testing.T) {
	l := newLab(t)
	const lost = "is on no interface of this host: no tunnel of a tenant's network ends here, and no packet of theirs is forwarded"
	c := overlay(t, "10.0.0.9")
	c.Services = nil
	running(t, l.director, doctor.Director, c, "vtep 10.0.0.9", lost)
	want(t, examine(t, l.director, doctor.Options{Config: c, Role: doctor.Director}), "vtep 10.0.0.9", doctor.Fail, lost, "ip addr add 10.0.0.9/32 dev eth0")
	l.director.Address("lo", "10.0.0.9/32")
	running(t, l.director, doctor.Director, c, "", "")
	want(t, examine(t, l.director, doctor.Options{Config: c, Role: doctor.Director}), "vtep 10.0.0.9", doctor.OK, "is an address of lo", "")
}
