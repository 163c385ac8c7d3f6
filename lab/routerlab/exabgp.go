package routerlab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"weir.io/weir/lab/netlab"
)

// ExaBGP writes down what it is told, and does nothing with it.
type ExaBGP struct {
	*Daemon
	updates string
}

// StartExaBGP starts ExaBGP with the configuration of its neighbors, which may name the
// process "log". It listens at the address.
func StartExaBGP(h *netlab.Host, address, config string) (*ExaBGP, error) {
	at := func(file string) string { return filepath.Join(h.Dir(), "exabgp", file) }
	e := &ExaBGP{updates: at("updates.json")}
	config = "process log {\n\trun /bin/sh " + at("log.sh") + ";\n\tencoder json;\n}\n" + config
	// ExaBGP takes what the process prints for commands: the process must be silent, but must not
	// close its output either.
	loop := fmt.Sprintf("while IFS= read -r line; do printf '%%s\\n' \"$line\" >>%s; done\n", e.updates)
	dir, err := directory(h, "exabgp", map[string]string{"exabgp.conf": config, "log.sh": loop})
	if err != nil {
		return nil, err
	}
	e.Daemon, err = start(h, dir, "exabgp", "env", "exabgp.tcp.bind="+address, "exabgp.tcp.port=179", "exabgp.daemon.user=root",
		"exabgp.api.cli=false", "exabgp.log.all=false", "exabgp", at("exabgp.conf"))
	if err != nil {
		return nil, err
	}
	return e, e.until("listen", func() bool {
		out, err := output(h, "ss", "-Hltn")
		return err == nil && strings.Contains(out, address+":179")
	})
}

// Updates returns what ExaBGP has been told so far, one JSON object per line.
func (e *ExaBGP) Updates() ([]byte, error) {
	text, err := os.ReadFile(e.updates)
	if os.IsNotExist(err) {
		return nil, nil
	}
	return text, err
}
