package routerlab

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"weir.io/weir/lab/netlab"
)

// frrPrograms is the directory of the daemons of Debian's FRR.
const frrPrograms = "/usr/lib/frr"

// ErrNoFRR says that FRR is not on this machine.
var ErrNoFRR = errors.New("FRR is not installed (make deps does it)")

// FRR is a router: bgpd and bfdd, and zebra, which puts what bgpd learns into the kernel.
type FRR struct {
	Zebra, BGPD, BFDD *Daemon // nil: not running

	host *netlab.Host
	dir  string
}

// FRRConfig is the daemons' configuration; a daemon without one does not run.
type FRRConfig struct{ BGP, BFD string }

// StartFRR starts FRR on a host, and waits until it answers.
func StartFRR(h *netlab.Host, config FRRConfig) (*FRR, error) {
	dir, err := directory(h, "frr", map[string]string{"bgpd.conf": config.BGP, "bfdd.conf": config.BFD})
	if err != nil {
		return nil, err
	}
	f := &FRR{host: h, dir: dir}
	if err := f.own(); err != nil {
		return nil, err
	}
	if f.Zebra, err = f.start("zebra"); err != nil {
		return nil, err
	}
	if err := f.Zebra.until("listen", func() bool { return exists(f.at("zserv.api")) && exists(f.at("zebra.vty")) }); err != nil {
		return nil, err
	}
	if config.BFD != "" {
		if err := f.startBFDD(); err != nil {
			return nil, err
		}
	}
	if config.BGP != "" {
		err = f.StartBGPD()
	}
	return f, err
}

// startBFDD starts bfdd, before bgpd, which asks it for sessions.
func (f *FRR) startBFDD() (err error) {
	if f.BFDD, err = f.start("bfdd", "--bfdctl", f.at("bfdd.sock"), "-f", f.at("bfdd.conf")); err != nil {
		return err
	}
	return f.BFDD.until("answer", func() bool {
		_, err := f.Query("show bfd peers json")
		return err == nil
	})
}

// StartBGPD starts bgpd again, with the configuration that it had.
func (f *FRR) StartBGPD() (err error) {
	if f.BGPD, err = f.start("bgpd", "-f", f.at("bgpd.conf")); err != nil {
		return err
	}
	return f.BGPD.until("answer", func() bool {
		_, err := f.Query("show bgp summary json")
		return err == nil
	})
}

func (f *FRR) start(name string, args ...string) (*Daemon, error) {
	all := append([]string{"-u", "frr", "-g", "frr", "-i", f.at(name + ".pid"), "-z", f.at("zserv.api"),
		"--vty_socket", f.dir, "-P", "0", "--log", "stdout", "--log-level", "info"}, args...)
	return start(f.host, f.dir, name, filepath.Join(frrPrograms, name), all...)
}

// own makes the user of FRR the owner of the directory.
func (f *FRR) own() error {
	who, err := user.Lookup("frr")
	if err != nil || !exists(filepath.Join(frrPrograms, "zebra")) {
		return errors.Join(ErrNoFRR, err)
	}
	uid, err := strconv.Atoi(who.Uid)
	gid, err2 := strconv.Atoi(who.Gid)
	if err := errors.Join(err, err2); err != nil {
		return fmt.Errorf("user frr: %w", err)
	}
	return errors.Join(os.Chown(f.dir, uid, gid), os.Chown(f.at("bgpd.conf"), uid, gid), os.Chown(f.at("bfdd.conf"), uid, gid))
}

func (f *FRR) at(file string) string { return filepath.Join(f.dir, file) }

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// Query returns what vtysh prints for a command.
func (f *FRR) Query(command string) (string, error) {
	return output(f.host, "vtysh", "--vty_socket", f.dir, "-c", command)
}

// Configure changes bgpd's configuration, a line at a time, as after "configure terminal".
func (f *FRR) Configure(lines ...string) error {
	args := []string{"--vty_socket", f.dir, "-c", "configure terminal"}
	for _, line := range lines {
		args = append(args, "-c", line)
	}
	_, err := output(f.host, "vtysh", args...)
	return err
}
