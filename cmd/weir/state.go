package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"syscall"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// defaultState is where state is kept when neither the configuration nor a service
// manager says where.
const defaultState = "/var/lib/weir"

// stateDirectory returns where a director keeps its state: where its configuration
// says, or where a service manager does (systemd.exec, StateDirectory=).
func stateDirectory(s model.Store) string {
	if s.Directory != "" {
		return s.Directory
	}
	if first, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":"); first != "" {
		return first
	}
	return defaultState
}

// openStore opens a director's own store. Without one the logs would be lost with the
// process, and connections with them: so there is always one.
func openStore(s model.Store, log *slog.Logger) (*store.File, error) {
	dir := stateDirectory(s)
	opened, err := store.OpenFile(dir, store.OwnerFile)
	switch {
	case errors.Is(err, store.ErrInUse):
		return nil, fmt.Errorf("%w; name another one in director.store.directory", err)
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		return nil, fmt.Errorf("%w; weir run keeps its state there: make it writable, or name another directory in director.store.directory", err)
	case err != nil:
		return nil, err
	}
	for _, bad := range opened.Damaged() {
		log.Error("the logs of the file's services are lost and begin again", "error", bad)
	}
	return opened, nil
}
