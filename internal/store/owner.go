package store

import "fmt"

// The owners that weir itself writes as.
const (
	OwnerFile = "file" // a director's own configuration file
	OwnerCLI  = "cli"  // weir apply, when it names none
)

// maxOwner bounds an owner's name, in bytes: it is a part of file names and keys.
const maxOwner = 63

// CheckOwner says what is wrong with the name of an owner, or nothing. Names become
// those of files and keys: lower case letters, digits, and - . _ after the first.
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
