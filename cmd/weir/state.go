package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
	"weir.io/weir/internal/store"
)

// defaultState is where state is kept if neither the configuration nor a service manager says
// where.
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

// openStore opens a director's own store. Without a store the logs would be lost with the process,
// and connections with them: so there always is one.
func openStore(s model.Store, log *slog.Logger) (*store.File, error) {
	dir := stateDirectory(s)
	opened, err := store.OpenFile(dir, store.OwnerFile)
	switch {
	case errors.As(err, new(*store.CorruptError)):
		return nil, err // it says what to do
	case errors.Is(err, store.ErrInUse):
		return nil, fmt.Errorf("%w; name another one in director.store.directory", err)
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		return nil, fmt.Errorf("%w; weir run keeps its state there: make it writable, or name another directory in director.store.directory", err)
	case err != nil:
		return nil, err
	}
	return opened, nil
}

// openGroup returns the store that a group shares, or nil if none is configured. It need
// not answer yet.
func openGroup(s model.Store, list *problems.List, log *slog.Logger) (*store.Etcd, error) {
	if !s.Etcd.Given() {
		return nil, nil
	}
	options := etcdOptions(s.Etcd)
	options.Cache, options.Log, options.Warn = filepath.Join(stateDirectory(s), "group"), log, list.Warn
	return store.OpenEtcd(options)
}

func etcdOptions(e model.Etcd) store.EtcdOptions {
	return store.EtcdOptions{Endpoints: e.Endpoints, Prefix: e.Prefix, CA: e.CA, Cert: e.Cert, Key: e.Key, Username: e.User, PasswordFile: e.PasswordFile}
}
