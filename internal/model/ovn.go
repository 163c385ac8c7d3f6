package model

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// OVN is where the Southbound database of an OVN is, which says where hosts of tenants' networks are. The zero value:
// nowhere.
type OVN struct {
	// Endpoints are tcp:HOST:PORT, ssl:HOST:PORT or unix:PATH, of each member of a cluster.
	Endpoints []string `json:"endpoints"`
	CA        string   `json:"ca,omitempty"`   // PEM file of those who sign the servers' certificates, for endpoints of ssl:
	Cert      string   `json:"cert,omitempty"` // PEM file of this director's certificate
	Key       string   `json:"key,omitempty"`  // PEM file of its key
	// Chassis is the name that this director has among OVN's hosts.
	Chassis string `json:"chassis"`
	// LeaderOnly says that of a cluster's members the leader alone is used.
	LeaderOnly bool `json:"leader-only,omitempty"`
}

// Given reports whether there is such a database.
func (o *OVN) Given() bool { return len(o.Endpoints) > 0 }

// IsZero reports whether no key is given.
func (o OVN) IsZero() bool {
	return !o.Given() && o.CA == "" && o.Cert == "" && o.Key == "" && o.Chassis == "" && !o.LeaderOnly
}

// Equal reports whether both say the same.
func (o OVN) Equal(other OVN) bool {
	same := slices.Equal(o.Endpoints, other.Endpoints)
	return same && o.CA == other.CA && o.Cert == other.Cert && o.Key == other.Key && o.Chassis == other.Chassis && o.LeaderOnly == other.LeaderOnly
}

const mostOVNEndpoints = 64

// endpointProblem says why an endpoint is none of a database's, or nothing: ovsdb(7).
func endpointProblem(text string) string {
	kind, rest, _ := strings.Cut(text, ":")
	switch kind {
	case "unix":
		if strings.HasPrefix(rest, "/") {
			return ""
		}
	case "tcp", "ssl":
		host, port, err := net.SplitHostPort(rest)
		if number, wrong := strconv.ParseUint(port, 10, 16); err == nil && wrong == nil && number != 0 && host != "" {
			return ""
		}
	}
	return fmt.Sprintf("%q is not tcp:HOST:PORT, ssl:HOST:PORT or unix:/PATH; an IPv6 address is in brackets", text)
}

// ovn checks where OVN's database is.
func (v *validation) ovn() {
	o := &v.config.OVN
	if !o.Given() {
		if !o.IsZero() {
			v.errs.add("ovn.endpoints", "is required")
		}
		return
	}
	if len(o.Endpoints) > mostOVNEndpoints {
		v.errs.add("ovn.endpoints", "%d are more than %d", len(o.Endpoints), mostOVNEndpoints)
		return
	}
	secure := false
	for i, e := range o.Endpoints {
		path := fmt.Sprintf("ovn.endpoints[%d]", i)
		if problem := endpointProblem(e); problem != "" {
			v.errs.add(path, "%s", problem)
		}
		if first := slices.Index(o.Endpoints, e); first < i {
			v.errs.addWithOther(path, fmt.Sprintf("ovn.endpoints[%d]", first), "%q is named twice", e)
		}
		secure = secure || strings.HasPrefix(e, "ssl:")
	}
	v.ovnFiles(secure)
	if problem := nameProblem(o.Chassis); problem != "" {
		v.errs.add("ovn.chassis", "%s", problem)
	}
	if !v.config.Director.VTEP.Given() {
		v.errs.addWithOther("ovn", "director.vtep", "needs director.vtep, where OVN's hosts send to")
	}
}

// ovnFiles checks the files of TLS: OVN's servers and clients know each other by certificates.
func (v *validation) ovnFiles(secure bool) {
	o := &v.config.OVN
	for _, f := range []struct{ field, path string }{{"ca", o.CA}, {"cert", o.Cert}, {"key", o.Key}} {
		switch {
		case secure && f.path == "":
			v.errs.addWithOther("ovn."+f.field, "ovn.endpoints", "is required for ssl:")
		case !secure && f.path != "":
			v.errs.addWithOther("ovn."+f.field, "ovn.endpoints", "is only for ssl:, and no endpoint is")
		case f.path != "" && !strings.HasPrefix(f.path, "/"):
			v.errs.add("ovn."+f.field, "%q is not an absolute path", f.path)
		}
	}
}

// network checks which network of OVN a segment is.
func (v *validation) network(s *SegmentSettings, at func(string) string) {
	if s.Network == "" {
		return
	}
	if problem := nameProblem(s.Network); problem != "" {
		v.errs.add(at("network"), "%s", problem)
	}
	if !v.config.OVN.Given() {
		v.errs.addWithOther(at("network"), "ovn", "needs ovn, which says where its hosts are")
	}
}

// networks checks that each network of OVN is one segment, and that all are of one kind: two hosts of OVN use one
// kind of tunnels with each other.
func (v *validation) networks() {
	first := map[string]int{}
	one := -1
	for i := range v.config.Segments {
		s := &v.config.Segments[i]
		if s.Network == "" || !s.ID.IsOverlay() {
			continue
		}
		path := fmt.Sprintf("segments[%d].network", i)
		if other, dup := first[s.Network]; dup {
			v.errs.addWithOther(path, fmt.Sprintf("segments[%d].network", other), "%q is already that of %s", s.Network, v.config.Segments[other].ID)
		} else {
			first[s.Network] = i
		}
		if one < 0 {
			one = i
		} else if of := v.config.Segments[one].ID; of.Kind != s.ID.Kind {
			v.errs.addWithOther(fmt.Sprintf("segments[%d].id", i), fmt.Sprintf("segments[%d].id", one), "%s is not of the kind of %s: OVN uses one kind of tunnels with a host", s.ID, of)
		}
	}
}

// OVNStatus is how a director is connected to OVN.
type OVNStatus struct {
	Connected bool      `json:"connected" doc:"what changes in the database is seen"`
	Endpoint  string    `json:"endpoint,omitempty" doc:"of the connection, or of the last one"`
	Since     time.Time `json:"since" doc:"when it became connected, or has not been since"`
	Problem   string    `json:"problem,omitempty" doc:"why it is not connected, or what is wrong with the database"`
	Known     bool      `json:"known" doc:"the database's content is known, or was before the connection was lost"`
	Networks  int       `json:"networks"`
	Ports     int       `json:"ports"`
	IPsec     bool      `json:"ipsec,omitempty" doc:"OVN encrypts all tunnels, and its hosts take no packets that are not"`
	// Chassis is this director among OVN's hosts.
	Chassis      string   `json:"chassis"`
	Registered   bool     `json:"registered" doc:"OVN's hosts know this director"`
	Unregistered string   `json:"unregistered,omitempty" doc:"why they do not, or not by all its tunnels"`
	Unread       []string `json:"unread,omitempty" doc:"ports of which something cannot be read"`
}
