package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

func nodeOf(change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"rack": "r1"}}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.7"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::7"}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, f := range change {
		f(n)
	}
	return n
}

func peerOf(name string, change ...func(*v1alpha1.BGPPeerSpec)) *v1alpha1.BGPPeer {
	p := &v1alpha1.BGPPeer{Spec: v1alpha1.BGPPeerSpec{Address: "10.0.0.1", ASN: 65000, Port: 179}}
	p.Name = name
	for _, f := range change {
		f(&p.Spec)
	}
	return p
}

// The file that follows from a group and a node is one that a director reads, and says what
// they say.
func TestFile(t *testing.T) {
	g := groupOf("1m")
	g.Spec.BGP = &v1alpha1.DirectorBGP{ASN: 65001}
	g.Spec.Limits = &v1alpha1.DirectorLimits{Services: 100, Backends: 2000, RingMemory: 1 << 20, Flows: 4096}
	interval, hold, pref := v1alpha1.Duration("50ms"), v1alpha1.Duration("30s"), int64(200)
	f := factsOf("a", nodeOf(), g)
	peers := peersOf([]*v1alpha1.BGPPeer{
		peerOf("bare"),
		peerOf("full", func(s *v1alpha1.BGPPeerSpec) {
			s.Address, s.ASN, s.Port, s.BFD = "2001:db8::1", 65001, 1790, &v1alpha1.BGPPeerBFD{Interval: &interval, Multiplier: 5}
			s.HoldTime, s.Families, s.Communities, s.LocalPref, s.PasswordSecret = &hold, []string{"ipv6"}, []string{"65000:100", "no-export"}, &pref, "tor"
		}),
		peerOf("other-rack", func(s *v1alpha1.BGPPeerSpec) {
			s.Address, s.NodeSelector = "10.0.0.3", &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "r2"}}
		}),
		peerOf("other-group", func(s *v1alpha1.BGPPeerSpec) { s.Address, s.Groups = "10.0.0.4", []string{"inner"} }),
		peerOf("locked", func(s *v1alpha1.BGPPeerSpec) { s.Address, s.PasswordSecret = "10.0.0.5", "unknown" }),
	}, g, &f)
	text, err := file(g, peers, &f, announced{active: true, passwords: map[string]string{"full": "/run/tor.password"}}, nil, "/var/lib/weir/state")
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("f", text)
	if err != nil {
		t.Fatal(err)
	}
	if d := c.Director; !slices.Equal(d.Interfaces, []string{"eth0"}) || len(d.SNAT.Addresses) != 2 || d.SNAT.Ports != (model.PortRange{First: 1024, Last: 29999}) ||
		d.Limits.Services != 100 || d.Limits.Backends != 2000 || d.Limits.RingMemory != 1<<20 || d.Limits.Flows != 4096 || d.Store.Directory != "/var/lib/weir/state" {
		t.Errorf("the director is %+v", d)
	}
	if c.Coalesce != coalesce {
		t.Errorf("the director waits %v for what belongs together", time.Duration(c.Coalesce))
	}
	if b := c.BGP; b.ASN != 65001 || b.RouterID != netip.MustParseAddr("10.0.0.7") || len(b.Neighbors) != 2 || len(b.Prefixes) != 2 || b.Prefixes[1].Prefix.String() != "2001:db8::7/128" || b.Prefixes[1].Announce != model.AnnounceNothing ||
		b.Neighbors[1].Port != 1790 || b.Neighbors[1].PasswordFile != "/run/tor.password" || b.Neighbors[1].BFD.Multiplier != 5 || len(b.Neighbors[1].Attributes.Communities) != 2 || b.Neighbors[0].BFD != nil {
		t.Errorf("it speaks BGP as %+v", b)
	}

	// A director that stands by has the same sessions, and announces nothing.
	if text, err = file(g, peers[:1], &f, announced{vips: nil}, nil, ""); err != nil {
		t.Fatal(err)
	}
	if c, err = config.Parse("f", text); err != nil || len(c.BGP.Neighbors) != 1 || len(c.BGP.Prefixes) != 4 || slices.ContainsFunc(c.BGP.Prefixes, func(p model.BGPPrefix) bool { return p.Announce != model.AnnounceNothing }) {
		t.Errorf("who stands by has %+v, %v", c.BGP, err)
	}

	// With node ports what comes from nodes and pods is the kernel's.
	for _, sources := range [][]string{nil, {"10.0.0.7/32", "fd00:244::/64"}} {
		if text, err = file(g, peers[:1], &f, announced{active: true}, sources, ""); err != nil {
			t.Fatal(err)
		}
		if c, err = config.Parse("f", text); err != nil || len(c.Director.KernelSources) != len(sources) {
			t.Errorf("it leaves %v to the kernel, %v", c.Director.KernelSources, err)
		}
	}

	// Without routers VIPs are answered for, those alone that are the node's.
	g.Spec.BGP, g.Spec.Neighbor = nil, &v1alpha1.DirectorNeighbor{}
	if text, err = file(g, peers, &f, announced{active: true, vips: []group.VIP{{Address: netip.MustParseAddr("203.0.113.1")}, {Address: netip.MustParseAddr("2001:db8:1::1")}}}, nil, ""); err != nil {
		t.Fatal(err)
	}
	if c, err = config.Parse("f", text); err != nil || c.BGP.Given() || len(c.Director.Neighbor.Interfaces) != 1 || len(c.Director.Neighbor.Interfaces[0].Prefixes) != 2 {
		t.Errorf("without routers it has %+v and %+v, %v", c.BGP, c.Director.Neighbor, err)
	}

	// In tenants' networks it answers inside VLANs, has addresses of its own, and is a VTEP at the node's.
	tenants := g.DeepCopy()
	tenants.Spec.VTEP = &v1alpha1.DirectorVTEP{Peers: []v1alpha1.SourceRange{"10.0.0.0/8"}}
	tenants.Spec.Segments = []v1alpha1.DirectorSegment{{ID: "vlan:7", Interface: "eth0.7", Directors: []v1alpha1.DirectorInSegment{{Node: "a", Addresses: []v1alpha1.Address{"10.9.0.2"}}, {Node: "b", Addresses: []v1alpha1.Address{"10.9.0.3"}}}},
		{ID: "vxlan:5001", VNI: 9, Limits: &v1alpha1.DirectorSegmentLimits{Flows: 2048, PacketsPerSecond: 1000}, Directors: []v1alpha1.DirectorInSegment{{Node: "a", MAC: "02:00:00:00:00:02"}}}}
	tenants.Spec.SegmentLimits = &v1alpha1.DirectorSegmentLimits{Flows: 1024, PacketsPerSecond: 500}
	vip := netip.MustParseAddr("10.9.0.100")
	in := func(id model.SegmentKind, n uint32) group.VIP {
		return group.VIP{Segment: model.Segment{Kind: id, ID: n}, Address: vip}
	}
	if text, err = file(tenants, peers, &f, announced{active: true, vips: []group.VIP{in(model.SegmentVLAN, 7), in(model.SegmentVXLAN, 5001)}}, nil, ""); err != nil {
		t.Fatal(err)
	}
	if c, err = config.Parse("f", text); err != nil || fmt.Sprint(c.Director.Neighbor.Interfaces) != "[{eth0.7 vlan:7 [10.9.0.100/32]}]" || fmt.Sprint(c.Director.VTEP.Addresses, c.Director.VTEP.Peers) != "[10.0.0.7 2001:db8::7] [10.0.0.0/8]" ||
		len(c.Segments) != 2 || fmt.Sprint(c.Segments[0].Addresses, c.Segments[1].VNI, c.Segments[1].MAC) != "[10.9.0.2] 9 02:00:00:00:00:02" {
		t.Errorf("in tenants' networks it has %+v, %+v and %+v, %v", c.Director.Neighbor.Interfaces, c.Director.VTEP, c.Segments, err)
	}
	if own := c.Segments[1].Limits; c.Segments[0].Limits != nil || own == nil || own.SegmentQuota != (model.SegmentQuota{Flows: 2048, PacketsPerSecond: 1000}) ||
		c.Director.SegmentLimits.SegmentQuota != (model.SegmentQuota{Flows: 1024, PacketsPerSecond: 500}) {
		t.Errorf("segments have the limits %+v and %+v, the others %+v", c.Segments[0].Limits, own, c.Director.SegmentLimits)
	}

	// It follows OVN also while it has no certificate: a network without OVN would be that of its ID.
	tenants.Spec.OVN = &v1alpha1.DirectorOVN{Endpoints: []string{"ssl:10.0.0.1:6642"}, CertificateSecret: "ovn"}
	tenants.Spec.Segments[1].Network = "tenant"
	inOVN := announced{active: true, ovn: certificate{ca: "/var/lib/weir/ca", cert: "/var/lib/weir/cert", key: "/var/lib/weir/key", err: errors.New("there is none")}}
	if text, err = file(tenants, peers, &f, inOVN, nil, ""); err != nil {
		t.Fatal(err)
	}
	if c, err = config.Parse("f", text); err != nil || fmt.Sprint(c.OVN) != "{[ssl:10.0.0.1:6642] /var/lib/weir/ca /var/lib/weir/cert /var/lib/weir/key weir-a false}" || c.Segments[1].Network != "tenant" {
		t.Errorf("it follows OVN as %+v, in %+v, %v", c.OVN, c.Segments, err)
	}
	nowhere := f
	nowhere.V4, nowhere.V6 = netip.Addr{}, netip.Addr{}
	if text, err = file(tenants, nil, &nowhere, inOVN, nil, ""); err != nil {
		t.Fatal(err)
	}
	if c, err = config.Parse("f", text); err != nil || c.OVN.Given() || len(c.Segments) != 1 {
		t.Errorf("without an address it follows OVN as %+v, in %+v, %v", c.OVN, c.Segments, err)
	}
	tenants.Spec.OVN, tenants.Spec.Segments[1].Network = nil, ""

	tenants.Spec.BGP, tenants.Spec.Neighbor = &v1alpha1.DirectorBGP{ASN: 65001}, nil
	red, err := translate.ReadBGPPeer(peerOf("red", func(s *v1alpha1.BGPPeerSpec) { s.Address, s.Segment, s.VRF = "10.0.0.1", "vlan:7", "red" }))
	if err != nil {
		t.Fatal(err)
	}
	if text, err = file(tenants, []*translate.BGPPeer{red}, &f, announced{}, nil, ""); err != nil {
		t.Fatal(err)
	}
	if c, err = config.Parse("f", text); err != nil || len(c.BGP.Neighbors) != 1 || c.BGP.Neighbors[0].Segment.String() != "vlan:7" || c.BGP.Neighbors[0].VRF != "red" {
		t.Errorf("a tenant's router is %+v, %v", c.BGP.Neighbors, err)
	}
	if c, err = config.Parse("f", text); err != nil || !slices.ContainsFunc(c.BGP.Prefixes, func(p model.BGPPrefix) bool {
		return p.Segment.String() == "vlan:7" && p.Prefix.Bits() == 0 && p.Announce == model.AnnounceNothing
	}) {
		t.Errorf("what stands by announces in segments by %+v, %v", c.BGP.Prefixes, err)
	}

	if text, err = file(g, peers, &f, announced{active: true}, nil, ""); err != nil || strings.Contains(string(text), "neighbor") {
		t.Errorf("who has no VIP answers for some: %s, %v", text, err)
	}
	g.Spec.Interfaces = []string{"eth0", "eth0"}
	if _, err := file(g, nil, &f, announced{}, nil, ""); err == nil || !strings.Contains(err.Error(), "DirectorGroup edge") {
		t.Errorf("what no director reads is written, with error %v", err)
	}
}

func TestFacts(t *testing.T) {
	g := groupOf("1m")
	g.Spec.NodeSelector = map[string]string{"rack": "r1"}
	for unfit, n := range map[string]*corev1.Node{
		"":                             nodeOf(),
		"the cluster has no such node": nil,
		"it is cordoned":               nodeOf(func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		"it is not ready":              nodeOf(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }),
		"it is about to be removed":    nodeOf(func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{} }),
		"it does not have the labels of DirectorGroup edge": nodeOf(func(n *corev1.Node) { n.Labels = nil }),
	} {
		if got := factsOf("a", n, g); got.Unfit != unfit || !got.RouterID.Is4() {
			t.Errorf("it is %+v, want %q", got, unfit)
		}
	}
	six := nodeOf(func(n *corev1.Node) { n.Status.Addresses = n.Status.Addresses[1:] })
	if a, b := factsOf("a", six, g), factsOf("b", six, g); a.RouterID == b.RouterID || !a.RouterID.Is4() || a.RouterID.IsMulticast() || a.RouterID.IsUnspecified() {
		t.Errorf("without an IPv4 address the router IDs are %v and %v", a.RouterID, b.RouterID)
	}
	said := nodeOf(func(n *corev1.Node) { n.Annotations = map[string]string{AnnotationRouterID: "192.0.2.9"} })
	if f := factsOf("a", said, g); f.RouterID.String() != "192.0.2.9" {
		t.Errorf("the router ID is %v, and the node says 192.0.2.9", f.RouterID)
	}
}

// A pod is what its environment says, and forwards by generic XDP.
func TestPod(t *testing.T) {
	four, six := netip.MustParseAddr("10.244.1.7"), netip.MustParseAddr("2001:db8::7")
	both := (&Pod{Name: "shop-1", Addresses: []netip.Addr{four, six}}).facts()
	alone := (&Pod{Name: "shop-1", Addresses: []netip.Addr{six}}).facts()
	if both.V4 != four || both.V6 != six || both.RouterID != four || both.Unfit != "" {
		t.Errorf("it is %+v", both)
	}
	if alone.V4.IsValid() || alone.V6 != six || !alone.RouterID.Is4() {
		t.Errorf("without an IPv4 address it is %+v", alone)
	}
	g := groupOf("1m")
	for f, want := range map[*facts]model.XDPMode{&both: model.XDPGeneric, {Name: "node", V4: four, RouterID: four}: model.XDPAuto} {
		text, err := file(g, nil, f, announced{}, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		if c, err := config.Parse("f", text); err != nil || c.Director.XDP != want || c.Director.SNAT.Addresses[0] != four {
			t.Errorf("the file of %s has %+v, error %v", f.Name, c.Director, err)
		}
	}
}

// A file is replaced as a whole, and not touched while it is what it should be.
func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var last os.FileInfo
	for _, step := range []struct {
		text    string
		another bool
	}{{"one", true}, {"two", true}, {"two", false}} {
		if err := replace(path, []byte(step.text)); err != nil {
			t.Fatal(err)
		}
		is, err := os.Stat(path)
		if err != nil || is.Mode().Perm() != 0o600 {
			t.Fatalf("the file is %v, %v", is, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != step.text {
			t.Errorf("the file has %q, %v", got, err)
		}
		if last != nil && os.SameFile(last, is) == step.another {
			t.Errorf("with %q it is another file: %v, want %v", step.text, !step.another, step.another)
		}
		last = is
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("there are %v, %v", entries, err)
	}
	if err := replace(filepath.Join(path, "none"), nil); err == nil {
		t.Error("a file is written where there is no directory")
	}
}
