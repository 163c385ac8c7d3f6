package datapath

import (
	"net/netip"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// Where full NAT takes its ports from in packet tests: 2 addresses per family,
// 64 ports each, which is 4 buckets per address and protocol.
var (
	snatSources = []netip.Addr{
		netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2"),
		netip.MustParseAddr("2001:db8:113::1"), netip.MustParseAddr("2001:db8:113::2"),
	}
	snatPorts = model.PortRange{First: 10000, Last: 10063}
)

// snatBucketSize is SNAT_BUCKET.
const snatBucketSize = 16

// putSNAT gives the director an empty table of these sources (IPv4 first), laid
// out as bpf/abi/snat_types.h says.
func (d *testDirector) putSNAT(t testing.TB, sources []netip.Addr, ports model.PortRange) {
	t.Helper()
	header := abi.SnatHeader{Salt: 0x5a17, PortsFirst: uint32(ports.First), Ports: uint32(ports.Last-ports.First) + 1}
	for i, a := range sources {
		header.Sources[i] = abiAddress(a)
		if a.Is4() {
			header.Addresses4++
		} else {
			header.Addresses6++
		}
	}
	spec := d.table.Copy()
	spec.MaxEntries = 1 + 2*uint32(len(sources))*header.Ports/snatBucketSize
	table, err := ebpf.NewMap(spec)
	if err != nil {
		t.Fatalf("create table of full NAT: %v", err)
	}
	if err := table.Put(uint32(0), unsafe.Slice((*byte)(unsafe.Pointer(&header)), unsafe.Sizeof(header))); err != nil {
		t.Fatalf("put header of full NAT's table: %v", err)
	}
	d.put(t, "snat_tables", uint32(0), table)
	if d.snat != nil {
		d.snat.Close()
	}
	d.snat = table
}

// start sends the SYN without which full NAT does not know a TCP connection.
func (s scenario) start(t testing.TB, d *testDirector) {
	t.Helper()
	if s.protocol == model.TCP && s.backends[0].snat {
		d.run(t, build(ip(s.client, s.vip), packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: packet.SYN}), 0)
	}
}
