package model

import (
	"fmt"
	"net/url"
	"strings"
)

// Store is where a director keeps sets of services, and the logs of all services.
type Store struct {
	Directory string `json:"directory,omitempty"` // empty: what the service manager says, or /var/lib/weir
	Etcd      Etcd   `json:"etcd,omitzero"`       // zero: the sets are not shared
}

// Etcd is the store that a group of directors shares, and agents report to.
type Etcd struct {
	Endpoints    []string `json:"endpoints,omitempty"` // https://HOST:PORT, of every member
	Prefix       string   `json:"prefix,omitempty"`    // of the group's keys
	CA           string   `json:"ca,omitempty"`        // PEM files; none: the system's CAs, and no client certificate
	Cert         string   `json:"cert,omitempty"`
	Key          string   `json:"key,omitempty"`
	User         string   `json:"user,omitempty"`
	PasswordFile string   `json:"password-file,omitempty"`
}

// Given reports whether a group's store is configured.
func (e Etcd) Given() bool { return len(e.Endpoints) > 0 }

// IsZero reports whether only keys that have a default are given.
func (e Etcd) IsZero() bool {
	return !e.Given() && e.Prefix == "" && e.CA+e.Cert+e.Key+e.User+e.PasswordFile == ""
}

// AgentStore is where an agent reports connections to; zero: it does not report.
type AgentStore struct {
	Etcd      Etcd           `json:"etcd,omitzero"`      // the directors'
	Directors AgentDirectors `json:"directors,omitzero"` // or their API
}

// AgentDirectors are the directors to which an agent reports by their API.
type AgentDirectors struct {
	Endpoints []string `json:"endpoints,omitempty"` // https://HOST:PORT, of every director
	CA        string   `json:"ca,omitempty"`        // PEM files; none: the system's CAs
	Cert      string   `json:"cert,omitempty"`      // of the agent
	Key       string   `json:"key,omitempty"`
	TokenFile string   `json:"token-file,omitempty"`
}

// Given reports whether directors are configured.
func (d AgentDirectors) Given() bool { return len(d.Endpoints) > 0 }

// IsZero reports whether no key is given.
func (d AgentDirectors) IsZero() bool { return !d.Given() && d.CA+d.Cert+d.Key+d.TokenFile == "" }

// maxAgentDirectors bounds the directors to which an agent reports: it asks all of them at once.
const maxAgentDirectors = 64

// DefaultEtcdPrefix begins the keys of a group that gives no other.
const DefaultEtcdPrefix = "/weir"

func (e *Etcd) setDefaults() {
	if e.Given() && e.Prefix == "" {
		e.Prefix = DefaultEtcdPrefix
	}
}

// store checks where a director keeps its state.
func (v *validation) store() {
	s := &v.config.Director.Store
	v.fromRoot("director.store.directory", s.Directory)
	v.etcd("director.store.etcd", &s.Etcd)
}

// agentStore checks where an agent reports to.
func (v *validation) agentStore() {
	a := &v.config.Agent
	v.etcd("agent.store.etcd", &a.Store.Etcd)
	v.agentDirectors(&a.Store.Directors)
	for _, way := range []struct {
		path  string
		given bool
	}{{"agent.store.etcd", a.Store.Etcd.Given()}, {"agent.store.directors", a.Store.Directors.Given()}} {
		if a.SocketsElsewhere && way.given {
			v.errs.addWithOther(way.path, "agent.sockets-elsewhere",
				"is where the agent reports the connections that it sees, and it would report that there are none")
		}
	}
	if a.Store.Etcd.Given() && a.Store.Directors.Given() {
		v.errs.addWithOther("agent.store.directors", "agent.store.etcd", "is another way to the same directors: give one of the two")
	}
}

// agentDirectors checks to which directors an agent reports.
func (v *validation) agentDirectors(d *AgentDirectors) {
	if d.IsZero() {
		return
	}
	const path = "agent.store.directors"
	if !d.Given() {
		v.errs.add(path+".endpoints", "is required")
	}
	if len(d.Endpoints) > maxAgentDirectors {
		v.errs.add(path+".endpoints", "are %d; there can be %d", len(d.Endpoints), maxAgentDirectors)
	}
	if secure := v.endpoints(path+".endpoints", d.Endpoints); d.Given() && !secure {
		v.errs.add(path+".endpoints", "is https://HOST:PORT: a director answers agents by TLS alone")
	}
	for _, file := range []struct{ key, path string }{{"ca", d.CA}, {"cert", d.Cert}, {"key", d.Key}, {"token-file", d.TokenFile}} {
		v.fromRoot(path+"."+file.key, file.path)
	}
	if (d.Cert == "") != (d.Key == "") {
		v.errs.add(path+".cert", "needs its key, and a key its certificate: give both or neither")
	}
	if d.TokenFile == "" && d.Cert == "" {
		v.errs.add(path+".token-file", "is required, or a cert: the directors believe nobody else")
	}
}

// etcd checks the block at a path.
func (v *validation) etcd(path string, e *Etcd) {
	if e.IsZero() {
		return
	}
	endpoints := path + ".endpoints"
	if !e.Given() {
		v.errs.add(endpoints, "is required")
	}
	secure := v.endpoints(endpoints, e.Endpoints)
	if !strings.HasPrefix(e.Prefix, "/") || strings.HasSuffix(e.Prefix, "/") {
		v.errs.add(path+".prefix", "%q does not begin with a slash, or ends with one", e.Prefix)
	}
	for _, file := range []struct{ key, path string }{
		{"ca", e.CA}, {"cert", e.Cert}, {"key", e.Key}, {"password-file", e.PasswordFile},
	} {
		at := path + "." + file.key
		v.fromRoot(at, file.path)
		if file.path != "" && !secure {
			v.errs.addWithOther(at, endpoints, "is for endpoints of https only")
		}
	}
	if (e.Cert == "") != (e.Key == "") {
		v.errs.add(path+".cert", "needs its key, and a key its certificate: give both or neither")
	}
	if (e.User == "") != (e.PasswordFile == "") {
		v.errs.add(path+".user", "needs a password-file, and that a user: give both or neither")
	}
}

func (v *validation) fromRoot(at, path string) {
	if path != "" && !strings.HasPrefix(path, "/") {
		v.errs.add(at, "%q is not a path from the root", path)
	}
}

// endpoints checks the members' addresses and returns whether all of them are secure.
func (v *validation) endpoints(path string, list []string) (secure bool) {
	seen := make(map[string]int, len(list))
	for i, endpoint := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		if first, dup := seen[endpoint]; dup {
			v.errs.addWithOther(at, fmt.Sprintf("%s[%d]", path, first), "%q is named twice", endpoint)
		}
		seen[endpoint] = i
		u, err := url.Parse(endpoint)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.User != nil,
			u.Path != "" || u.RawQuery != "" || u.Fragment != "":
			v.errs.add(at, "%q is not https://HOST:PORT or http://HOST:PORT", endpoint)
		case !strings.HasPrefix(list[0], u.Scheme+":"):
			v.errs.add(at, "%q is not of the first one's scheme", endpoint)
		}
	}
	return len(list) > 0 && strings.HasPrefix(list[0], "https:")
}
