package director

import (
	"fmt"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/sets"
)

// segmentsAPI is the API's way to where hosts of tenants' networks are.
type segmentsAPI struct{ d *Director }

// Segments returns what is known of all segments, and what is counted of each.
func (a segmentsAPI) Segments() (model.SegmentsStatus, error) {
	c := a.d.Config()
	status := a.d.segments.Status(&c)
	kernel, err := a.d.kernel.Status()
	if err != nil {
		return status, fmt.Errorf("read the datapath: %w", err)
	}
	status.Count(kernel.Segments)
	return status, nil
}

// PutSegments replaces what clients of the API have said of hosts.
func (a segmentsAPI) PutSegments(text api.SetText) (put api.PutHosts, err error) {
	vtep := a.d.Config().Director.VTEP
	list, err := sets.Read(text, func(text []byte) ([]model.SegmentHosts, error) { return config.ParseHosts("segments", text, vtep) })
	if err != nil {
		return put, err
	}
	if err := a.d.segments.Put(list); err != nil {
		return put, err
	}
	put.Segments = len(list)
	for i := range list {
		put.Hosts += len(list[i].Hosts)
	}
	return put, nil
}

// segmentProblems are what is wrong with what is known of where hosts are.
func (d *Director) segmentProblems() []model.Problem {
	c := d.Config()
	return append(d.segments.Problems(&c), d.ovn.Problems()...)
}
