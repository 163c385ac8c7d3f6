package routerlab

import (
	"path/filepath"

	"weir.io/weir/lab/netlab"
)

// GoBGP is gobgpd, which puts nothing into the kernel: a route reflector.
type GoBGP struct {
	*Daemon
	host *netlab.Host
}

// StartGoBGP starts gobgpd with a configuration in TOML, and waits until it answers.
func StartGoBGP(h *netlab.Host, config string) (*GoBGP, error) {
	dir, err := directory(h, "gobgp", map[string]string{"gobgp.conf": config})
	if err != nil {
		return nil, err
	}
	g := &GoBGP{host: h}
	if g.Daemon, err = start(h, dir, "gobgpd", "gobgpd", "-t", "toml", "-f", filepath.Join(dir, "gobgp.conf"), "--api-hosts", "127.0.0.1:50051"); err != nil {
		return nil, err
	}
	return g, g.until("answer", func() bool {
		_, err := g.Query("neighbor")
		return err == nil
	})
}

// Query returns what the gobgp command prints.
func (g *GoBGP) Query(args ...string) (string, error) { return output(g.host, "gobgp", args...) }
