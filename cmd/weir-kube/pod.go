package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/kube/node"
)

// podFlags are what a director that is a pod knows about itself.
type podFlags struct {
	name, uid, addresses, bpffs string
}

func (p *podFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.name, "pod", "", "`name` of this pod, which is the director, wherever it runs")
	f.StringVar(&p.addresses, "pod-addresses", os.Getenv("POD_IPS"), "its `addresses`, one of a family, with commas; else what POD_IPS in the environment says")
	f.StringVar(&p.uid, "pod-uid", os.Getenv("POD_UID"), "its `UID`, with which its Lease goes; else what POD_UID in the environment says")
	f.StringVar(&p.bpffs, "pod-bpffs", "", "`directory` of a BPF file system in which each pod of the group has its own: those of pods that are gone are removed; empty: none is")
}

// read returns the pod; nil: the node is the director.
func (p *podFlags) read() (*node.Pod, error) {
	if p.name == "" {
		return nil, nil
	}
	pod := &node.Pod{Name: p.name, UID: types.UID(p.uid), BPFFS: p.bpffs}
	for text := range strings.SplitSeq(p.addresses, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("--pod-addresses: %w", err)
		}
		pod.Addresses = append(pod.Addresses, a.Unmap())
	}
	return pod, nil
}
