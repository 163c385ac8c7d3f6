package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Linux takes the larger of conf/all and the interface's own for each of these, so
// they are only ever raised.
const (
	arpIgnore   = "arp_ignore"   // 1: answer for addresses of the interface that was asked only
	arpAnnounce = "arp_announce" // 2: never name a VIP as the sender
	rpFilter    = "rp_filter"    // 1: strict, 2: loose
)

// quietARP keeps the host from answering for and announcing the VIPs on lo: the
// directors do. IPv6 needs nothing: a neighbour solicitation is answered only for
// addresses of the interface that it came in on.
func quietARP(uplinks []uplink, log *slog.Logger) error {
	errs := []error{raise("all", arpIgnore, 1, log), raise("all", arpAnnounce, 2, log)}
	for _, u := range uplinks {
		errs = append(errs, raise(u.name, arpIgnore, 1, log), raise(u.name, arpAnnounce, 2, log))
	}
	return errors.Join(errs...)
}

// loosenReversePath turns strict reverse path filtering into loose. A client's
// packet comes in where its director sent it, which need not be the way back to
// the client; strict filtering would drop it without a trace.
func loosenReversePath(uplinks []uplink, log *slog.Logger) error {
	all, err := read("all", rpFilter)
	if err != nil {
		return err
	}
	var errs []error
	for _, u := range uplinks {
		own, err := read(u.name, rpFilter)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if max(all, own) == 1 {
			errs = append(errs, raise(u.name, rpFilter, 2, log))
		}
	}
	return errors.Join(errs...)
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

// raise sets a sysctl that is lower. Where nobody may write it, as in most containers, what the
// host has does, if it is enough.
func raise(conf, key string, to int, log *slog.Logger) error {
	value, err := read(conf, key)
	if err != nil || value >= to {
		return err
	}
	err = os.WriteFile(sysctlPath(conf, key), []byte(strconv.Itoa(to)), 0o644)
	if err == nil {
		log.Info("sysctl raised", "key", "net.ipv4.conf."+conf+"."+key, "from", value, "to", to)
		return nil
	}
	if all, readErr := read("all", key); readErr == nil && all >= to {
		return nil
	}
	return fmt.Errorf("set sysctl net.ipv4.conf.%s.%s to %d: %w; set it on the host, or let this process write /proc/sys", conf, key, to, err)
}
