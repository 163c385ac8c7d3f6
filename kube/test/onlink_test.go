package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"weir.io/weir/kube/group"
)

const onLinkVIP, onLinkVIP6 = "10.2.0.200", "fd00:2::200"

// A group that answers for VIPs by ARP and NDP, for a client on the same link without a router:
// each VIP belongs to one director, which follows only from the list of directors. The client finds
// the next director when that one goes, with or without notice.
//
//	client --- switch --- node-a node-b node-c
//	                  --- pod1 pod2 pod3
//	                  --- control
func TestDirectorGroupOnLink(t *testing.T) {
	l := newGroupLab(t, groupOptions{values: "testdata/onlink.values.yaml", onLink: true, pool: fmt.Sprintf("%s, %q", onLinkVIP, onLinkVIP6)})
	a, b, c := l.nodes[0], l.nodes[1], l.nodes[2]
	l.waitForFit()
	l.controller("first")
	l.waitForStatus("node-a node-b, 1 stand by")

	l.pods("web", 1, 2)
	l.podsBySix("web", 1, 2)
	l.service("web", func(s *corev1.Service) {
		both := corev1.IPFamilyPolicyRequireDualStack
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &both, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	})
	l.waitForAddresses("web", onLinkVIP+" "+onLinkVIP6)
	vips := []string{onLinkVIP, onLinkVIP6}
	for _, vip := range vips {
		l.reaches(urlHost(vip), "pod1", "pod2")
		l.learns(vip, l.owner(vip, a, b))
	}

	// The director of the first VIP is cordoned: another one takes the VIP, and tells the link.
	goes := l.owner(onLinkVIP, a, b)
	stays := a
	if goes == a {
		stays = b
	}
	goes.cordon(true)
	l.waitForStatus(stays.Name + " node-c, 0 stand by")
	for _, vip := range vips {
		l.learns(vip, l.owner(vip, stays, c))
		l.reaches(urlHost(vip), "pod1", "pod2")
	}

	// Its successor is lost, with its cable: nothing is announced until its Lease ends.
	goes.cordon(false)
	l.waitForStatus(stays.Name + " node-c, 1 stand by")
	lost := l.owner(onLinkVIP, stays, c)
	left := c
	if lost == c {
		left = stays
	}
	stop(t, lost.sidecar)
	stop(t, lost.weir)
	if err := lost.port.SetUp(false); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the group to do without "+lost.Name, func() bool {
		return !strings.Contains(l.status(), lost.Name) && strings.Contains(l.status(), left.Name) && strings.Contains(l.status(), goes.Name)
	})
	for _, vip := range vips {
		l.learns(vip, l.owner(vip, left, goes))
		l.reaches(urlHost(vip), "pod1", "pod2")
	}

	// No director answers for a deleted Service.
	l.deleteService("web")
	for _, vip := range vips {
		waitFor(t, "nobody to answer for "+vip, func() bool {
			runOn(t, l.client, "ip", "neigh", "flush", "dev", "eth0")
			_, err := l.ask(urlHost(vip))
			return err != nil && l.neighbor(vip) == ""
		})
	}
}

// owner is the director among these that answers for a VIP.
func (l *groupLab) owner(vip string, directors ...*labNode) *labNode {
	l.t.Helper()
	var names []string
	for _, d := range directors {
		names = append(names, d.Name)
	}
	for _, d := range directors {
		if group.Answers(d.Name, names, group.VIP{Address: netip.MustParseAddr(vip)}) {
			return d
		}
	}
	l.t.Fatalf("none of %v answers for %s", names, vip)
	return nil
}

// neighbor is the MAC address to which the client sends a VIP's packets; empty: unknown.
func (l *groupLab) neighbor(vip string) string {
	out, err := l.client.Command(l.t.Context(), "ip", "neigh", "show", "to", vip, "dev", "eth0").CombinedOutput()
	if err != nil {
		return err.Error()
	}
	words := strings.Fields(string(out))
	if at := slices.Index(words, "lladdr"); at > 0 && at+1 < len(words) {
		return words[at+1]
	}
	return ""
}

// learns waits until the client, which keeps asking, sends a VIP's packets to the node.
func (l *groupLab) learns(vip string, n *labNode) {
	l.t.Helper()
	waitFor(l.t, fmt.Sprintf("the client to find %s at %s", vip, n.Name), func() bool {
		_, err := l.ask(urlHost(vip))
		return err == nil && l.neighbor(vip) == n.port.MAC.String()
	})
}

// urlHost is an address in the form for URLs.
func urlHost(address string) string {
	if strings.Contains(address, ":") {
		return "[" + address + "]"
	}
	return address
}

// podsBySix makes these pods, by their IPv6 addresses, the only ones that serve a Service.
func (l *lab) podsBySix(service string, pods ...int) {
	l.t.Helper()
	slice := l.newSlice(service)
	slice.Name, slice.AddressType = service+"-6", discoveryv1.AddressTypeIPv6
	yes := true
	for _, i := range pods {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("fd00:2::%d", 20+i)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("pod%d", i)},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes}})
	}
	l.putSlice(slice)
}
