package director

import (
	"fmt"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/tune"
)

// fanOutCPUs are the CPUs to which those of receive queues give packets: the last ones of the host, because
// drivers bind their queues to the first. With auto there are as many as are left, if the interface with the
// fewest queues has fewer than there are CPUs.
func fanOutCPUs(f model.FanOut, interfaces []string) ([]uint32, error) {
	if !f.Given() {
		return nil, nil
	}
	online := tune.This().OnlineCPUs()
	want := int(f.CPUs)
	if f.Auto {
		want = 0
		for _, name := range interfaces {
			if queues, err := tune.QueueCount(name); err == nil { // one that is missing is waited for
				want = max(want, len(online)-queues)
			}
		}
	}
	if want > len(online) {
		return nil, fmt.Errorf("director.fan-out: this host has %d CPUs, and %d are to get packets", len(online), want)
	}
	return online[len(online)-want:], nil
}
