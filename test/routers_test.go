package test

import (
	"testing"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
)

// The routers' logs are shown when a test fails. Routers run at real-time priority: one that this
// machine delays would take a director for lost.

func startFRR(t *testing.T, h *netlab.Host, config routerlab.FRRConfig) *routerlab.FRR {
	t.Helper()
	router, err := routerlab.StartFRR(h, config)
	if err == nil {
		err = router.Realtime()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for name, d := range map[string]*routerlab.Daemon{"bgpd": router.BGPD, "bfdd": router.BFDD} {
			if t.Failed() && d != nil {
				t.Logf("%s on %s said:\n%s", name, h.Name, d.Log())
			}
		}
	})
	return router
}

func startBIRD(t *testing.T, h *netlab.Host, config string) *routerlab.BIRD {
	t.Helper()
	router, err := routerlab.StartBIRD(h, config)
	if err == nil {
		err = router.Realtime()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			protocols, _ := router.Query("show", "protocols", "all")
			t.Logf("BIRD on %s said:\n%s\n%s", h.Name, router.Log(), protocols)
		}
	})
	return router
}

func startExaBGP(t *testing.T, h *netlab.Host, address, config string) *routerlab.ExaBGP {
	t.Helper()
	speaker, err := routerlab.StartExaBGP(h, address, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("ExaBGP on %s said:\n%s", h.Name, speaker.Log())
		}
	})
	return speaker
}
