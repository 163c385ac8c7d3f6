package doctor_test

import (
	"testing"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
)

// A reverse path filter drops what comes from a VIP by another way than the host's own to it.
func TestAnswersFromVIPs(t *testing.T) {
	l := newLab(t)
	const check = "answers eth1"
	checked := config(model.GUE, "10.0.1.2")
	checked.Services[0].Health = &model.HealthCheck{Kind: model.CheckTCP}
	checked.SetDefaults()
	of := func(c *model.Config) map[string]doctor.Finding {
		return examine(t, l.director, doctor.Options{Config: c})
	}
	want(t, of(checked), check, doctor.OK, "rp_filter is 0", "")
	l.director.Sysctl("net.ipv4.conf.eth1.rp_filter", "2")
	want(t, of(checked), check, doctor.Warn, "there is no route to VIP 203.0.113.10", "default route")
	l.director.Route("default", "10.0.0.2")
	want(t, of(checked), check, doctor.OK, "rp_filter is 2", "")
	l.director.Sysctl("net.ipv4.conf.eth1.rp_filter", "1")
	want(t, of(checked), check, doctor.Warn, "the route to VIP 203.0.113.10 leads to eth0", "net/ipv4/conf/eth1/rp_filter=2")
	want(t, of(config(model.NAT, "10.0.1.2")), check, doctor.Warn, "replies of nat", "")
	if f, said := of(config(model.GUE, "10.0.1.2"))[check]; said {
		t.Errorf("nothing is to come from VIPs, and doctor says %+v", f)
	}
	l.director.Route("203.0.113.0/24", "10.0.1.2")
	want(t, of(checked), check, doctor.OK, "rp_filter is 1", "")
}
