package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/upkeep"
)

// Linux takes the larger of conf/all and the interface's own for each of these, so
// they are only ever raised.
const (
	arpIgnore   = "arp_ignore"   // 1: answer only for addresses of the interface that was asked
	arpAnnounce = "arp_announce" // 2: never name a VIP as the sender
	rpFilter    = "rp_filter"    // 1: strict, 2: loose
)

// strict is the only value of rp_filter that drops packets of clients whose route back
// leads by another interface.
const strict = 1

// sysctl is a sysctl that the agent needs, of all interfaces or of one.
type sysctl struct {
	conf, key string
	least     int
}

// neededSysctls are the sysctls of the uplinks. A client's packet comes in where its director sent
// it, which need not be the way back to the client: strict reverse path filtering would drop it
// without a trace. With quiet the host neither answers for nor announces the VIPs on lo, because
// the directors do. IPv6 needs nothing: a neighbor solicitation is answered only for addresses of
// the interface that it came in on.
func neededSysctls(uplinks []uplink, quiet bool) (list []sysctl) {
	for _, u := range uplinks {
		list = append(list, sysctl{u.name, rpFilter, strict + 1})
	}
	if !quiet {
		return list
	}
	list = append(list, sysctl{"all", arpIgnore, 1}, sysctl{"all", arpAnnounce, 2})
	for _, u := range uplinks {
		list = append(list, sysctl{u.name, arpIgnore, 1}, sysctl{u.name, arpAnnounce, 2})
	}
	return list
}

func (s sysctl) name() string { return "net.ipv4.conf." + s.conf + "." + s.key }

// wrong returns the present value, and whether it must be changed. If it cannot be written, as in
// most containers, the value in conf/all will do if it is high enough.
func (s sysctl) wrong() (value int, wrong bool, err error) {
	value, err = read(s.conf, s.key)
	if err != nil {
		return 0, false, err
	}
	all, err := read("all", s.key)
	if err != nil {
		return 0, false, err
	}
	if s.key == rpFilter {
		return value, max(all, value) == strict, nil
	}
	if value >= s.least {
		return value, false, nil
	}
	writable := unix.Access(sysctlPath(s.conf, s.key), unix.W_OK) == nil
	return value, writable || all < s.least, nil
}

// raise sets the sysctl to the least value that will do.
func (s sysctl) raise() error {
	if err := os.WriteFile(sysctlPath(s.conf, s.key), []byte(strconv.Itoa(s.least)), 0o644); err != nil {
		return fmt.Errorf("set sysctl %s to %d: %w; set it on the host, or let this process write /proc/sys", s.name(), s.least, err)
	}
	return nil
}

// raiseSysctls raises all sysctls that are lower.
func raiseSysctls(list []sysctl, log *slog.Logger) error {
	var errs []error
	for _, s := range list {
		value, wrong, err := s.wrong()
		if wrong {
			err = s.raise()
		}
		if err != nil {
			errs = append(errs, err)
		} else if wrong {
			log.Info("sysctl raised", "key", s.name(), "from", value, "to", s.least)
		}
	}
	return errors.Join(errs...)
}

// sysctlDifferences returns the sysctls that have been lowered.
func sysctlDifferences(list []sysctl) (found []upkeep.Difference, err error) {
	for _, s := range list {
		value, wrong, err := s.wrong()
		if errors.Is(err, fs.ErrNotExist) && s.conf != "all" {
			continue // the interface is gone meanwhile
		}
		if err != nil {
			return nil, err
		}
		if wrong {
			found = append(found, upkeep.Difference{What: s.name(), Found: fmt.Sprintf("is %d instead of %d", value, s.least), Repair: s.raise})
		}
	}
	return found, nil
}

func sysctlPath(conf, key string) string {
	return filepath.Join("/proc/sys/net/ipv4/conf", conf, key)
}

func read(conf, key string) (int, error) {
	text, err := os.ReadFile(sysctlPath(conf, key))
	if err != nil {
		return 0, fmt.Errorf("read sysctl: %w", err)
	}
	value, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read sysctl %s of %s: %w", key, conf, err)
	}
	return value, nil
}
