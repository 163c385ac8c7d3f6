// Package decap tests weir's tunnels with decapsulators that are not weir's: the kernel's own ipip,
// sit, ip6tnl and fou.
//
// Few kernels have all of them: "make test-kernels" boots two that do.
package decap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

const patience = 15 * time.Second

// There are these four tunnels, each in IPIP and in GUE.
var (
	vips     = []netip.Addr{netip.MustParseAddr("10.80.0.1"), netip.MustParseAddr("fd00:80::1")}
	backends = []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2")}
	sources  = []netip.Prefix{netip.MustParsePrefix("10.99.0.0/26"), netip.MustParsePrefix("fd00:99::/64")}
)

// tunnel is one way to send a service's packets to the backend.
type tunnel struct {
	mode    model.Mode
	vip     netip.Addr
	backend netip.Addr
	port    uint16
	device  string // the backend's device that must see the packets
	others  int    // other candidates, which GUE names to the backend
}

func (t tunnel) String() string {
	name := fmt.Sprintf("%v/%d-in-%d", t.mode, version(t.vip), version(t.backend))
	if t.others > 0 {
		return fmt.Sprintf("%s/%d others", name, t.others)
	}
	return name
}

func version(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

func tunnels() []tunnel {
	var all []tunnel
	for _, mode := range []model.Mode{model.IPIP, model.GUE} {
		for _, vip := range vips {
			for _, backend := range backends {
				device := "ip6tnl"
				if backend.Is4() {
					device = map[int]string{4: "ipip", 6: "sit"}[version(vip)]
				}
				for _, others := range []int{0, 1, model.MaxCandidates - 1} {
					all = append(all, tunnel{mode, vip, backend, uint16(8000 + len(all)), device, others})
				}
			}
		}
	}
	return all
}

// The VIPs are on the backend's lo, and only tunnels reach them:
//
//	client 10.0.0.2 ---- 10.0.0.1 director 10.1.0.1 ---- 10.1.0.2 backend
//	       fd00::2       fd00::1           fd00:1::1     fd00:1::2
//
// Replies do not pass weir: the director's kernel routes them.
func TestKernelDecapsulates(t *testing.T) {
	lab := netlab.ForTest(t)
	client, director, backend := lab.Host("client"), lab.Router("director"), lab.Host("backend")
	front := lab.Link(client, director, netlab.LinkOptions{XDP: true,
		A: []string{"10.0.0.2/24", "fd00::2/64"}, B: []string{"10.0.0.1/24", "fd00::1/64"}})
	back := lab.Link(director, backend, netlab.LinkOptions{XDP: true, MTU: 9000,
		A: []string{"10.1.0.1/24", "fd00:1::1/64"}, B: []string{"10.1.0.2/24", "fd00:1::2/64"}})
	client.Route("default", "10.0.0.1")
	client.Route("default", "fd00::1")
	backend.Route("default", "10.1.0.1")
	backend.Route("default", "fd00:1::1")
	backend.Address("lo", vips[0].String()+"/32", vips[1].String()+"/128")
	addDecapsulators(t, backend)

	forward(t, director, model.Table{
		Interfaces:   []string{front.B.Name},
		TunnelSource: sources,
		ICMPRate:     100,
		Services:     services(tunnels(), model.MAC(back.B.MAC)),
	})
	for _, tunnel := range tunnels() {
		address := netip.AddrPortFrom(tunnel.vip, tunnel.port).String()
		t.Run(tunnel.String()+"/tcp", func(t *testing.T) {
			before := received(t, backend, tunnel.device)
			echoStream(t, client, backend, address)
			if received(t, backend, tunnel.device) == before {
				t.Errorf("no packet came through the backend's %s device", tunnel.device)
			}
		})
		t.Run(tunnel.String()+"/udp", func(t *testing.T) {
			before := received(t, backend, tunnel.device)
			echoDatagram(t, client, backend, address)
			if received(t, backend, tunnel.device) == before {
				t.Errorf("no packet came through the backend's %s device", tunnel.device)
			}
		})
	}
}

// addDecapsulators makes one device per pair of families, open to every sender, and the port that
// removes GUE for them.
func addDecapsulators(t *testing.T, backend *netlab.Host) {
	t.Helper()
	local4, local6 := net.IP(backends[0].AsSlice()), net.IP(backends[1].AsSlice())
	named := func(name string) netlink.LinkAttrs {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		return attrs
	}
	err := backend.Do(func() error {
		for _, device := range []netlink.Link{
			&netlink.Iptun{LinkAttrs: named("ipip"), Local: local4, Proto: unix.IPPROTO_IPIP},
			&netlink.Sittun{LinkAttrs: named("sit"), Local: local4, Proto: unix.IPPROTO_IPV6},
			&netlink.Ip6tnl{LinkAttrs: named("ip6tnl"), Local: local6}, // any family inside
		} {
			if err := netlink.LinkAdd(device); err != nil {
				return fmt.Errorf("make %s: %w", device.Attrs().Name, err)
			}
			if err := netlink.LinkSetUp(device); err != nil {
				return fmt.Errorf("set %s up: %w", device.Attrs().Name, err)
			}
		}
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			if err := openGUE(uint8(family), 6080); err != nil {
				return fmt.Errorf("open GUE port: %w", err)
			}
		}
		return nil
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("this kernel lacks a decapsulator (make test-kernels boots kernels that have them): %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// openGUE is "ip fou add port PORT gue". netlink.FouAdd also sends an inner protocol of 0, which
// some kernels refuse.
func openGUE(family uint8, port uint16) error {
	fou, err := netlink.GenlFamilyGet("fou")
	if err != nil {
		return err
	}
	request := nl.NewNetlinkRequest(int(fou.ID), unix.NLM_F_ACK)
	request.AddData(&nl.Genlmsg{Command: netlink.FOU_CMD_ADD, Version: 1})
	request.AddData(nl.NewRtAttr(netlink.FOU_ATTR_PORT, binary.BigEndian.AppendUint16(nil, port)))
	request.AddData(nl.NewRtAttr(netlink.FOU_ATTR_AF, []byte{family}))
	request.AddData(nl.NewRtAttr(netlink.FOU_ATTR_TYPE, []byte{netlink.FOU_ENCAP_GUE}))
	_, err = request.Execute(unix.NETLINK_GENERIC, 0)
	return err
}

// services has one service per tunnel and protocol. The existing backend owns every slot.
func services(tunnels []tunnel, mac model.MAC) []model.TableService {
	var all []model.TableService
	for _, tunnel := range tunnels {
		for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
			all = append(all, model.TableService{
				Name:     fmt.Sprintf("%v %v", tunnel, protocol),
				VIP:      tunnel.vip,
				Protocol: protocol,
				Port:     model.PortRange{First: tunnel.port, Last: tunnel.port},
				Salt:     uint64(len(all)),
				Backends: candidates(tunnel, mac),
				Ring:     ring(tunnel.others),
			})
		}
	}
	return all
}

// candidates are the backend, and others that do not exist.
func candidates(tunnel tunnel, mac model.MAC) []model.TableBackend {
	address, list := tunnel.backend, make([]model.TableBackend, tunnel.others+1)
	for i := range list {
		list[i] = model.TableBackend{Name: fmt.Sprintf("backend%d", i), Address: address,
			Mode: tunnel.mode, State: model.Active, MAC: mac}
		address = address.Next()
	}
	return list
}

// ring is a ring in which the first backend owns every slot, and all others follow.
func ring(others int) model.Ring {
	slot, row := model.Slot{Owner: 0, Next: model.NoBackend}, model.CandidateList{Oldest: []uint8{0}}
	for i := range others {
		row.Next = append(row.Next, uint32(i+1))
		row.Oldest = append(row.Oldest, uint8(i+1))
	}
	switch others {
	case 0:
		return model.Ring{Slots: slices.Repeat([]model.Slot{slot}, 1021)}
	case 1:
		slot.Next = 1
		return model.Ring{Slots: slices.Repeat([]model.Slot{slot}, 1021)}
	}
	slot.Next = model.ListFlag
	return model.Ring{Slots: slices.Repeat([]model.Slot{slot}, 1021), Lists: []model.CandidateList{row}}
}

func received(t *testing.T, host *netlab.Host, device string) (packets uint64) {
	t.Helper()
	err := host.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		packets = link.Attrs().Statistics.RxPackets
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return packets
}

// echoStream sends more than a window's worth through a connection and back.
func echoStream(t *testing.T, client, backend *netlab.Host, address string) {
	t.Helper()
	listener, err := backend.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		server, err := listener.Accept()
		if err != nil {
			return // the dial's error says more
		}
		defer server.Close()
		io.Copy(server, server)
	}()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := client.DialContext(ctx, "tcp", address)
	if err != nil {
		t.Fatalf("connect through the tunnel: %v", err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))

	sent := randomBytes(200_000)
	go func() {
		conn.Write(sent)
		conn.(*net.TCPConn).CloseWrite()
	}()
	echoed, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(echoed, sent) {
		t.Fatalf("got %d of %d bytes back, or others: %v", len(echoed), len(sent), err)
	}
}

// echoDatagram sends datagrams of every length up to a small limit, odd ones too, and a large one.
// They must come back unchanged.
func echoDatagram(t *testing.T, client, backend *netlab.Host, address string) {
	t.Helper()
	server, err := backend.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		buffer := make([]byte, 2048)
		for {
			n, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			server.WriteTo(buffer[:n], from)
		}
	}()

	conn, err := client.DialContext(t.Context(), "udp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	buffer := make([]byte, 2048)
	for _, length := range []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1400} {
		sent := randomBytes(length)
		if _, err := conn.Write(sent); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Read(buffer)
		if err != nil || !bytes.Equal(buffer[:n], sent) {
			t.Fatalf("a datagram of %d bytes came back with %d, or others: %v", length, n, err)
		}
	}
}

func randomBytes(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	return data
}
