package model

import (
	"fmt"
	"net/netip"
)

// maxAPIClients bounds the clients that may ask: each is a token or a name to look for.
const maxAPIClients = 1024

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
	names, certificates := map[string]int{}, map[string]int{}
	for i := range a.Clients {
		c := &a.Clients[i]
		path := func(field string) string { return fmt.Sprintf("api.clients[%d].%s", i, field) }
		if problem := nameProblem(c.Name); problem != "" {
			v.errs.add(path("name"), "%s", problem)
		} else if first, dup := names[c.Name]; dup {
			v.errs.addWithOther(path("name"), fmt.Sprintf("api.clients[%d].name", first), "%q is already the name of api.clients[%d]", c.Name, first)
		}
		names[c.Name] = i
		if !c.Role.Includes(RoleRead) {
			v.errs.add(path("role"), "is required (read, write or admin)")
		}
		v.apiOwner(c, path)
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

// ownerFile is the name under which the store keeps the services of a director's file.
const ownerFile = "file"
