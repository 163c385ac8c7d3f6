package store

import "weir.io/weir/internal/model"

// The owners as which weir itself writes.
const (
	OwnerFile = "file" // a director's own configuration file
	OwnerCLI  = "cli"  // weir apply, without an owner
)

// CheckOwner says what is wrong with the name of an owner, or nothing: see
// model.CheckOwner.
func CheckOwner(owner string) error { return model.CheckOwner(owner) }
