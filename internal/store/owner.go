package store

import "weir.io/weir/internal/model"

// The owners that weir itself writes as.
const (
	OwnerFile = "file" // a director's own configuration file
	OwnerCLI  = "cli"  // weir apply, when it names none
)

// CheckOwner says what is wrong with the name of an owner, or nothing: see
// model.CheckOwner.
func CheckOwner(owner string) error { return model.CheckOwner(owner) }
