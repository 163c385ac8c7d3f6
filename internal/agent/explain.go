package agent

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// explainXDP says what a refusal means.
func explainXDP(err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return errors.New("the driver has no XDP")
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return errors.New("another XDP program is attached")
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, unix.E2BIG):
		return fmt.Errorf("the driver refuses XDP with the interface's MTU or offloads: %w", err)
	}
	return err
}
