package model

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// API is where a director can be asked over TCP, and by which clients. On its unix socket it can
// always be asked.
type API struct {
	Listen   []netip.AddrPort `json:"listen,omitempty"`    // with TLS, by clients only
	Cert     string           `json:"cert,omitempty"`      // PEM files
	Key      string           `json:"key,omitempty"`       //
	ClientCA string           `json:"client-ca,omitempty"` // the CA that may have signed clients' certificates
	Clients  []APIClient      `json:"clients,omitempty"`
	// ReadOnly are the addresses where every process of this host may ask, without TLS.
	ReadOnly []netip.AddrPort `json:"read-only,omitempty"`
}

// APIClient is a client of the API, and what it may do.
type APIClient struct {
	Name        string `json:"name"`
	Role        Role   `json:"role"`
	Owner       string `json:"owner,omitempty"`       // the owner whose set it may write, with role write; empty: the owner of its name
	TokenFile   string `json:"token-file,omitempty"`  // the token that it shows, or what is left of it: sha256:HEX
	Certificate string `json:"certificate,omitempty"` // instead, or in addition: the common name or a DNS name in its certificate
	// Addresses are, with role agent, those of the backend whose agent it is: one per family at most. Segment is the
	// tenant's network that they are in.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Segment   Segment      `json:"segment,omitzero"`
	// Segments are the tenants' networks that it is for, with roles read and write: it sees and changes nothing
	// else. None: it is for all.
	Segments []Segment `json:"segments,omitempty"`
}

// IsZero reports whether no key is given.
func (a API) IsZero() bool {
	return len(a.Listen)+len(a.Clients)+len(a.ReadOnly) == 0 && a.Cert+a.Key+a.ClientCA == ""
}

// WritesTo returns the owner whose set a client may write, or "".
func (c *APIClient) WritesTo() string {
	switch {
	case c.Role != RoleWrite:
		return ""
	case c.Owner != "":
		return c.Owner
	}
	return c.Name
}

// maxOwner bounds an owner's name, in bytes: it is a part of file names and keys.
const maxOwner = 63

// SetChange is how a set changed: services by their names, in order.
type SetChange struct {
	Revision uint64   `json:"revision"` // of the state that has it
	Tag      string   `json:"-"`        // of the set
	Added    []string `json:"added"`
	Changed  []string `json:"changed"`
	Removed  []string `json:"removed"`
	// Moves are what happens to the slots of changed services.
	Moves []Move `json:"moves"`
}

// SetCondition is what must hold for an owner's set before it is replaced. The zero value demands
// nothing.
type SetCondition struct {
	Tags []string // one of them is the set's
	Some bool     // there is a set
	None bool     // there is no set
}

// CheckOwner says what is wrong with the name of a set's owner, or nothing. Names become file names
// and keys: lower case letters, digits, and - . _ after the first.
func CheckOwner(owner string) error {
	if owner == "" || len(owner) > maxOwner {
		return fmt.Errorf("owner %q: a name has 1 to %d characters", Shown(owner), maxOwner)
	}
	for i := range len(owner) {
		c := owner[i]
		alone := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		if !alone && (i == 0 || c != '-' && c != '.' && c != '_') {
			return fmt.Errorf("owner %q: a name is of a-z, 0-9 and, after the first, - . _", owner)
		}
	}
	return nil
}

// Role is what a client of the API may do.
type Role string

// The roles. Each may do what the ones before it may.
const (
	RoleRead  Role = "read"  // ask
	RoleWrite Role = "write" // and change the set of one owner
	RoleAdmin Role = "admin" // everything, except what is an agent's
)

// RoleAgent is the role of the agent on a backend's host: it reports of its own backend, and may do nothing else.
const RoleAgent Role = "agent"

var roles = []Role{RoleRead, RoleWrite, RoleAdmin}

var roleNames = names[Role]{kind: "role", list: []name[Role]{
	{RoleRead, string(RoleRead)}, {RoleWrite, string(RoleWrite)}, {RoleAdmin, string(RoleAdmin)}, {RoleAgent, string(RoleAgent)}}}

// UnmarshalText reads the name; the error lists the known ones.
func (r *Role) UnmarshalText(text []byte) error { return roleNames.read(r, text) }

// Names returns all names.
func (Role) Names() []string { return roleNames.texts() }

// Includes reports whether the role may do all that another one may. That of an agent is apart.
func (r Role) Includes(other Role) bool {
	if r == RoleAgent || other == RoleAgent {
		return r == other
	}
	return slices.Contains(roles, r) && slices.Index(roles, r) >= slices.Index(roles, other)
}

// At returns whose reports the client makes: none without role agent.
func (c *APIClient) At() (all []HostAddress) {
	if c.Role != RoleAgent {
		return nil
	}
	for _, a := range c.Addresses {
		all = append(all, HostAddress{c.Segment, a})
	}
	return all
}

// Agents returns the addresses of all backends of which some client reports.
func (a *API) Agents() map[HostAddress]bool {
	all := map[HostAddress]bool{}
	for i := range a.Clients {
		for _, at := range a.Clients[i].At() {
			all[at] = true
		}
	}
	return all
}

// maxAPIClients bounds the clients that may ask: each is a token or a name to look for, and a file that is read again
// every ten seconds. Each agent that reports by the API is one.
const maxAPIClients = 8192

// api checks where a director can be asked.
func (v *validation) api() {
	a := &v.config.API
	v.apiFiles(a)
	if len(a.Listen) > 0 {
		for _, needed := range []struct{ key, value string }{{"cert", a.Cert}, {"key", a.Key}} {
			if needed.value == "" {
				v.errs.addWithOther("api."+needed.key, "api.listen", "is required: there is no api.listen without TLS")
			}
		}
		if len(a.Clients) == 0 {
			v.errs.addWithOther("api.clients", "api.listen", "is required: nobody could ask there")
		}
	}
	seen := map[netip.AddrPort]string{}
	for _, list := range []struct {
		key      string
		at       []netip.AddrPort
		loopback bool
	}{{"api.listen", a.Listen, false}, {"api.read-only", a.ReadOnly, true}} {
		for i, at := range list.at {
			path := fmt.Sprintf("%s[%d]", list.key, i)
			first, dup := seen[at]
			switch {
			case !at.IsValid() || at.Port() == 0:
				v.errs.add(path, "is not an address and port, as 10.0.0.2:6083 or \"[2001:db8::2]:6083\"")
			case dup:
				v.errs.addWithOther(path, first, "%v is named twice", at)
			case list.loopback && !at.Addr().IsLoopback():
				v.errs.add(path, "%v can be reached by other hosts, and nobody is asked who they are: take 127.0.0.1 or ::1, or api.listen", at)
			}
			seen[at] = path
		}
	}
	v.apiClients(a)
}

func (v *validation) apiFiles(a *API) {
	for _, file := range []struct{ key, path string }{{"cert", a.Cert}, {"key", a.Key}, {"client-ca", a.ClientCA}} {
		v.fromRoot("api."+file.key, file.path)
	}
}

func (v *validation) apiClients(a *API) {
	if len(a.Clients) > maxAPIClients {
		v.errs.add("api.clients", "are %d; there can be %d", len(a.Clients), maxAPIClients)
		return
	}
	names, certificates, agents := map[string]int{}, map[string]int{}, map[HostAddress]int{}
	for i := range a.Clients {
		c := &a.Clients[i]
		path := func(field string) string { return fmt.Sprintf("api.clients[%d].%s", i, field) }
		if problem := nameProblem(c.Name); problem != "" {
			v.errs.add(path("name"), "%s", problem)
		} else if first, dup := names[c.Name]; dup {
			v.errs.addWithOther(path("name"), fmt.Sprintf("api.clients[%d].name", first), "%q is already the name of api.clients[%d]", c.Name, first)
		}
		names[c.Name] = i
		if c.Role == "" {
			v.errs.add(path("role"), "is required (read, write, admin or agent)")
		}
		v.apiOwner(c, path)
		v.apiAgent(c, path)
		for j, at := range c.At() {
			if first, dup := agents[at]; dup && first != i {
				v.errs.addWithOther(fmt.Sprintf("%s[%d]", path("addresses"), j), fmt.Sprintf("api.clients[%d].addresses", first), "%s is already that of %q: a backend has one agent", at, a.Clients[first].Name)
			} else {
				agents[at] = i
			}
		}
		v.apiSegments(c, path)
		if c.TokenFile == "" && c.Certificate == "" {
			v.errs.add(path("token-file"), "is required, or a certificate: nobody is believed by name")
		}
		v.fromRoot(path("token-file"), c.TokenFile)
		if c.Certificate == "" {
			continue
		}
		if a.ClientCA == "" {
			v.errs.addWithOther(path("certificate"), "api.client-ca", "needs api.client-ca: who may have signed it")
		}
		if first, dup := certificates[c.Certificate]; dup {
			v.errs.addWithOther(path("certificate"), fmt.Sprintf("api.clients[%d].certificate", first), "%q is already that of api.clients[%d]", c.Certificate, first)
		}
		certificates[c.Certificate] = i
	}
}

func (v *validation) apiOwner(c *APIClient, path func(string) string) {
	switch {
	case c.Role != RoleWrite && c.Owner != "":
		v.errs.add(path("owner"), "is only for role write")
	case c.Role != RoleWrite:
	case CheckOwner(c.WritesTo()) != nil:
		key := "owner"
		if c.Owner == "" {
			key = "name"
		}
		v.errs.add(path(key), "%v; it is whose set the client may write", CheckOwner(c.WritesTo()))
	case c.WritesTo() == ownerFile:
		v.errs.add(path("owner"), "%q is this file, which no client may write", ownerFile)
	}
}

// apiAgent checks of which backend an agent reports.
func (v *validation) apiAgent(c *APIClient, path func(string) string) {
	if c.Role != RoleAgent {
		const only = "is only for role agent"
		if len(c.Addresses) > 0 {
			v.errs.add(path("addresses"), only)
		}
		if c.Segment != (Segment{}) {
			v.errs.add(path("segment"), only)
		}
		return
	}
	if problem := segmentProblem(c.Segment); problem != "" {
		v.errs.add(path("segment"), "%s", problem)
	}
	if len(c.Addresses) == 0 {
		v.errs.add(path("addresses"), "is required with role agent: of which backend it reports")
	}
	v.onePerFamily(path("addresses"), c.Addresses)
}

// apiSegments checks which tenants' networks a client is for.
func (v *validation) apiSegments(c *APIClient, path func(string) string) {
	switch {
	case len(c.Segments) == 0:
	case c.Role == RoleAdmin:
		v.errs.addWithOther(path("segments"), path("role"), "is only for the roles read and write: an administrator may do everything")
	case c.Role == RoleAgent:
		v.errs.addWithOther(path("segments"), path("role"), "is only for the roles read and write: an agent has one segment")
	}
	each(v, path("segments"), c.Segments, Segment.String, func(s Segment) string {
		if s == (Segment{}) {
			return "none is no tenant's network: vlan:ID, vxlan:VNI or geneve:VNI"
		}
		return segmentProblem(s)
	})
}

// ownerFile is the name under which the store keeps the services of a director's file.
const ownerFile = "file"

// Outdated says why a certificate is not valid at a time: it has expired, or its time has not
// begun. Nil: it is valid at that time.
func Outdated(c *x509.Certificate, now time.Time) error {
	switch {
	case c == nil:
		return nil
	case now.After(c.NotAfter):
		return fmt.Errorf("the certificate has ended on %s", c.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(c.NotBefore):
		return fmt.Errorf("the certificate begins on %s: it is too early, or this host's clock is wrong", c.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

// OutdatedCA is Outdated for a CA's certificates in PEM: if none of them is valid, it says what
// is wrong with the last one.
func OutdatedCA(text []byte, now time.Time) (err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		c, wrong := x509.ParseCertificate(block.Bytes)
		if wrong != nil {
			continue // the code that reads it says so
		}
		if err = Outdated(c, now); err == nil {
			return nil
		}
	}
	return err
}
