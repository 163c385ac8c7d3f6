package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"time"

	"weir.io/weir/internal/model"
)

// Hosts is what a source has last said of where hosts of tenants' networks are: a start goes on with it.
type Hosts struct {
	Since    time.Time      `json:"since"`
	Segments []SegmentHosts `json:"segments"`
	VTEPs    []netip.Addr   `json:"vteps,omitempty"` // that send packets in some segment
}

// SegmentHosts is what a source has said of one network.
type SegmentHosts struct {
	ID      model.Segment       `json:"id"`
	VNI     uint32              `json:"vni,omitempty"`     // on the wire, if the source has said it
	Network string              `json:"network,omitempty"` // by which the source knows it
	Hosts   []model.SegmentHost `json:"hosts"`
	MACs    []model.SegmentMAC  `json:"macs,omitempty"` // also of hosts whose addresses the source does not know
}

// hostsName is the name of a source's file: it has no suffix of sets.
func hostsName(source model.HostSource) string { return "hosts-" + string(source) }

// SaveHosts writes what a source says into the directory of a process's state.
func SaveHosts(dir string, source model.HostSource, h Hosts) error {
	text, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encode hosts of tenants' networks: %w", err)
	}
	if err := WriteFile(dir, hostsName(source), append(text, '\n')); err != nil {
		return fmt.Errorf("keep where hosts of tenants' networks are: %w", err)
	}
	return nil
}

// LoadHosts returns what SaveHosts has written; false: nothing. A file that cannot be used gives a
// *CorruptError, and is moved aside.
func LoadHosts(dir string, source model.HostSource) (h Hosts, found bool, err error) {
	_, err = readValue(filepath.Join(dir, hostsName(source)), &h)
	if errors.Is(err, fs.ErrNotExist) {
		return h, false, nil
	}
	if bad := (*CorruptError)(nil); errors.As(err, &bad) {
		bad.moveAside()
	}
	return h, err == nil, err
}
