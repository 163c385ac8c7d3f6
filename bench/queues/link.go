package queues

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// Classes of a port: each server has one; other traffic is not limited.
const (
	freeClass   = 1
	firstServer = 2
	unlimited   = 10_000_000_000 // bits per second
)

// leastBurst is one frame, which may be sent at once.
const leastBurst = 1600

// limit gives each of these addresses of a host a link of its own, in one direction: a class of
// the port's with that rate in bits per second, into which netfilter puts what the address sends.
func limit(ctx context.Context, h *netlab.Host, port *netlab.Port, rate uint64, senders []netip.Addr) error {
	if err := h.Do(func() error { return classes(port.Index, rate, len(senders)) }); err != nil {
		return err
	}
	rules := strings.Builder{}
	rules.WriteString("table ip links { chain out { type filter hook postrouting priority 0; meta priority set ip saddr map {")
	for i, sender := range senders {
		fmt.Fprintf(&rules, " %v : 1:%x,", sender, firstServer+i)
	}
	rules.WriteString(" }; }; }\n")
	conf := filepath.Join(h.Dir(), "links.nft")
	if err := os.WriteFile(conf, []byte(rules.String()), 0o644); err != nil {
		return fmt.Errorf("write the rules: %w", err)
	}
	_, err := process.Run(ctx, h, "nft", "-f", conf)
	return err
}

func classes(index int, rate uint64, servers int) error {
	root := netlink.MakeHandle(1, 0)
	htb := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Handle: root, Parent: netlink.HANDLE_ROOT})
	htb.Defcls = freeClass
	if err := netlink.QdiscAdd(htb); err != nil {
		return fmt.Errorf("add HTB: %w", err)
	}
	for class := range uint16(firstServer + servers) {
		rate := rate
		if class == 0 {
			continue
		}
		if class == freeClass {
			rate = unlimited
		}
		burst := max(leastBurst, uint32(rate/8/1000))
		at := netlink.ClassAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, class), Parent: root}
		if err := netlink.ClassAdd(netlink.NewHtbClass(at, netlink.HtbClassAttrs{Rate: rate, Ceil: rate, Buffer: burst, Cbuffer: burst})); err != nil {
			return fmt.Errorf("add class %d: %w", class, err)
		}
	}
	return nil
}

// sentOn is how many bytes one of a host's servers has put on its link, with Ethernet's header.
func sentOn(h *netlab.Host, port *netlab.Port, server int) (sent uint64, err error) {
	err = h.Do(func() error {
		link, err := netlink.LinkByIndex(port.Index)
		if err != nil {
			return err
		}
		all, err := netlink.ClassList(link, netlink.MakeHandle(1, 0))
		if err != nil {
			return err
		}
		handle := netlink.MakeHandle(1, uint16(firstServer+server))
		for _, class := range all {
			if a := class.Attrs(); a.Handle == handle && a.Statistics != nil {
				sent = a.Statistics.Basic.Bytes
				return nil
			}
		}
		return fmt.Errorf("there is no class %s", netlink.HandleStr(handle))
	})
	if err != nil {
		return 0, fmt.Errorf("read the counters of a link of %s: %w", h.Name, err)
	}
	return sent, nil
}
