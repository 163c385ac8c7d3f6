package routerlab

import (
	"path/filepath"

	"weir.io/weir/lab/netlab"
)

// BIRD is BIRD 2.
type BIRD struct {
	*Daemon
	host   *netlab.Host
	socket string
}

// StartBIRD starts BIRD with a configuration, and waits until it answers.
func StartBIRD(h *netlab.Host, config string) (*BIRD, error) {
	dir, err := directory(h, "bird", map[string]string{"bird.conf": config})
	if err != nil {
		return nil, err
	}
	b := &BIRD{host: h, socket: filepath.Join(dir, "bird.ctl")}
	if b.Daemon, err = start(h, dir, "bird", "bird", "-f", "-c", filepath.Join(dir, "bird.conf"), "-s", b.socket, "-P", filepath.Join(dir, "bird.pid")); err != nil {
		return nil, err
	}
	return b, b.until("answer", func() bool {
		_, err := b.Query("show status")
		return err == nil
	})
}

// Query returns what birdc prints for a command.
func (b *BIRD) Query(command ...string) (string, error) {
	return output(b.host, "birdc", append([]string{"-r", "-s", b.socket}, command...)...)
}
