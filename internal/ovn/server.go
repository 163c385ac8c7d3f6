package ovn

import (
	"errors"
	"fmt"

	"weir.io/weir/internal/ovsdb"
)

// server is a row of the table Database in the server's own database: ovsdb-server(5).
type server struct {
	name, model       string
	connected, leader bool
	cluster           ovsdb.Set[ovsdb.UUID]
	index             ovsdb.Set[int64]
}

var serverTable = map[string]ovsdb.Table{"Database": {Columns: []string{"name", "model", "connected", "leader", "cid", "index"}}}

func (s *server) read(name string, c column) (err error) {
	switch name {
	case "name":
		err = one(c, &s.name)
	case "model":
		err = one(c, &s.model)
	case "connected":
		err = one(c, &s.connected)
	case "leader":
		err = one(c, &s.leader)
	case "cid":
		err = optionalOne(c, &s.cluster)
	case "index":
		err = optionalOne(c, &s.index)
	}
	return err
}

// server takes what the server says of itself. The error is why it is not to be used, or not any more.
func (f *follower) server(rows map[ovsdb.UUID]*server) func(ovsdb.Changes, error) error {
	return func(changes ovsdb.Changes, err error) error {
		if err != nil {
			return err
		}
		for id, c := range changes["Database"] {
			if err := put(rows, id, c); err != nil {
				return fmt.Errorf("row %s of table Database: %w", id, err)
			}
		}
		for _, s := range rows {
			if s.name == database {
				return f.usable(s)
			}
		}
		return nil
	}
}

func (f *follower) usable(s *server) error {
	switch {
	case !s.connected && s.model == "relay":
		return errors.New("the relay has no connection to its database")
	case !s.connected:
		return errors.New("the member has no connection to its cluster")
	case s.model != "clustered":
		f.cluster = ""
		return nil
	case f.Leader && !s.leader:
		return errors.New("the member is not the cluster's leader")
	}
	if s.cluster.One() == f.cluster && s.index.One() < f.index {
		return fmt.Errorf("the member is behind: it has entry %d of the cluster's log, and entry %d was seen", s.index.One(), f.index)
	}
	f.cluster, f.index = s.cluster.One(), s.index.One()
	return nil
}
