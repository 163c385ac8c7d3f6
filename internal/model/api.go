package model

import (
	"fmt"
	"net/netip"
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

// CheckOwner says what is wrong with the name of a set's owner, or nothing. Names become file names
// and keys: lower case letters, digits, and - . _ after the first.
func CheckOwner(owner string) error {
	if owner == "" || len(owner) > maxOwner {
		return fmt.Errorf("owner %q: a name has 1 to %d characters", owner, maxOwner)
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
