package model

import "slices"

// Role is what a client of the API may do.
type Role string

// The roles. Each may do what the ones before it may.
const (
	RoleRead  Role = "read"  // ask
	RoleWrite Role = "write" // and change the set of one owner
	RoleAdmin Role = "admin" // everything
)

var roles = []Role{RoleRead, RoleWrite, RoleAdmin}

var roleNames = names[Role]{kind: "role", list: []name[Role]{
	{RoleRead, string(RoleRead)}, {RoleWrite, string(RoleWrite)}, {RoleAdmin, string(RoleAdmin)}}}

// UnmarshalText reads the name; the error lists the known ones.
func (r *Role) UnmarshalText(text []byte) (err error) {
	*r, err = roleNames.parse(text)
	return err
}

// Names returns all names.
func (Role) Names() []string { return roleNames.texts() }

// Includes reports whether the role may do all that another one may.
func (r Role) Includes(other Role) bool {
	return slices.Contains(roles, r) && slices.Index(roles, r) >= slices.Index(roles, other)
}
