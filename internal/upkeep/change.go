package upkeep

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// mostPID is the largest number of a process (PID_MAX_LIMIT in linux/threads.h). A netlink
// socket has its process's number if it is that process's first, or one far above.
const mostPID = 1 << 22

// Change is what the kernel has told about something that another process has done.
type Change struct {
	Type    uint16     // unix.RTM_DELADDR, ...
	Index   int        // of the interface; 0: the message names none, or it is not read
	Address netip.Addr // of RTM_NEWADDR and RTM_DELADDR; the destination of routes; of neighbors
	by      string
	at      time.Time
}

// note remembers which processes have made changes. Changes by the kernel itself, and by this
// process, are left out.
func (n *Notices) note(messages []syscall.NetlinkMessage) {
	own := uint32(os.Getpid())
	var changes []Change
	for i := range messages {
		m := &messages[i]
		if pid := m.Header.Pid; pid == 0 || pid == own || pid > mostPID {
			continue
		}
		c := Change{Type: m.Header.Type, by: processName(m.Header.Pid), at: time.Now()}
		c.read(m.Data)
		changes = append(changes, c)
	}
	if changes == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changes = append(n.changes, changes...)
	if more := len(n.changes) - mostChanges; more > 0 {
		n.changes = slices.Delete(n.changes, 0, more)
	}
}

// read reads what the message is about (linux/rtnetlink.h).
func (c *Change) read(data []byte) {
	switch c.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(data) >= unix.SizeofIfAddrmsg {
			c.Index = int(nl.DeserializeIfAddrmsg(data).Index)
			c.Address = attribute(data[unix.SizeofIfAddrmsg:], unix.IFA_ADDRESS)
		}
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(data) >= unix.SizeofIfInfomsg {
			c.Index = int(nl.DeserializeIfInfomsg(data).Index)
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(data) >= unix.SizeofRtMsg {
			c.Address = attribute(data[unix.SizeofRtMsg:], unix.RTA_DST)
		}
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		// struct ndmsg: family, padding, then the interface's index at 4.
		if len(data) >= unix.SizeofNdMsg {
			c.Index = int(nl.NativeEndian().Uint32(data[4:]))
			c.Address = attribute(data[unix.SizeofNdMsg:], unix.NDA_DST)
		}
	case unix.RTM_NEWQDISC, unix.RTM_DELQDISC, unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
		// struct tcmsg: family, padding, then the interface's index at 4.
		if len(data) >= nl.SizeofTcMsg {
			c.Index = int(nl.NativeEndian().Uint32(data[4:]))
		}
	}
}

// attribute returns an address among a message's attributes.
func attribute(data []byte, kind uint16) (address netip.Addr) {
	attributes, err := nl.ParseRouteAttr(data)
	if err != nil {
		return address
	}
	for _, a := range attributes {
		if a.Attr.Type == kind {
			address, _ = netip.AddrFromSlice(a.Value)
		}
	}
	return address
}

// processName names a process for people. Commands like ip have usually ended by now.
func processName(pid uint32) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("process %d, which has ended", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, bytes.TrimSpace(name))
}
