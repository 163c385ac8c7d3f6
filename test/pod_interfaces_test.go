package test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weir.io/weir/lab/netlab"
)

// An agent keeps working while interfaces that match its patterns come and go, as those of pods do.
// It leaves ARP alone if there is no VIP on lo.
func TestAgentFollowsPodsInterfaces(t *testing.T) {
	t.Parallel()
	l := newPodLab(t, 0, 2)
	node := l.backends[0]
	for _, conf := range []string{"all", "eth0"} {
		node.Sysctl("net.ipv4.conf."+conf+".arp_ignore", "0")
	}
	text := configText("", "eth0*", l.services("tcp", 80)...)
	text = strings.Replace(text, "agent:\n", "agent:\n  reply-interfaces: [\"eth[1-9]*\", flannel.1]\n", 1)
	agent := startDaemon(t, node, "agent", text)
	attached := func() string {
		var list []string
		for _, i := range agent.agentStatus().Interfaces {
			way := "both"
			if i.Ingress == "" {
				way = i.Egress
			}
			list = append(list, i.Name+" "+way)
		}
		slices.Sort(list)
		return strings.Join(list, ", ")
	}
	wait := func(want string) {
		t.Helper()
		agent.waitFor("be attached to "+want, func() bool { return attached() == want })
	}
	leaves := agent.agentStatus().Interfaces[1].Egress // tcx, or clsact before Linux 6.6
	wait(fmt.Sprintf("eth0 both, eth1 %s, eth2 %s", leaves, leaves))
	remove := func(name string) {
		t.Helper()
		if err := node.Do(func() error {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			return netlink.LinkDel(link)
		}); err != nil {
			t.Fatal(err)
		}
	}
	remove("eth2")
	wait(fmt.Sprintf("eth0 both, eth1 %s", leaves))
	l.Link(l.Host("late"), node, netlab.LinkOptions{NameB: "eth7"})
	wait(fmt.Sprintf("eth0 both, eth1 %s, eth7 %s", leaves, leaves))
	remove("eth1")
	remove("eth7")
	wait("eth0 both")
	if text := agent.logged(); strings.Contains(text, "level=ERROR") {
		t.Errorf("the agent says:\n%s", text)
	}
	wantNothingOn(t, node)
	if err := node.Do(func() error {
		for _, conf := range []string{"all", "eth0"} {
			text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + conf + "/arp_ignore")
			if err != nil || strings.TrimSpace(string(text)) != "0" {
				t.Errorf("arp_ignore of %s is %s, error %v", conf, text, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
