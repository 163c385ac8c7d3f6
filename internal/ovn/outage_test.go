package ovn

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/ovsdb"
	"weir.io/weir/lab/ovnlab"
)

// A cluster's leader is followed, and the next one, without asking for all rows again.
func TestClusterLeader(t *testing.T) {
	t.Parallel()
	c := ovnlab.NewCluster(t, 3)
	leader := c.Leader()
	seed(t, c.Endpoints[leader])
	w := watch(t, Options{Endpoints: c.Endpoints, Leader: true})
	w.port("net", "10.0.0.5", "is on hv1", isOn("hv1"))
	if s, _ := w.now(); s.Status.Endpoint != c.Endpoints[leader] {
		t.Errorf("the leader is %s, and %s is followed", c.Endpoints[leader], s.Status.Endpoint)
	}
	c.Kill(leader)
	next := c.Leader()
	w.until("the next leader is followed", func(s *Snapshot) error {
		if !s.Status.Connected || s.Status.Endpoint != c.Endpoints[next] {
			return fmt.Errorf("the leader is %s, and %s is followed: %w", c.Endpoints[next], s.Status.Endpoint, s.Status.Problem)
		}
		return nil
	})
	if log := w.log.String(); !strings.Contains(log, "endpoint="+c.Endpoints[next]+" resumed=true") {
		t.Errorf("all rows were asked for again:\n%s", log)
	}
	transact(t, c.Endpoints[next], []ovsdb.Operation{move("p0", rowID(t, c.Endpoints[next], "hv2"))})
	w.port("net", "10.0.0.5", "is on hv2", isOn("hv2"))
}

// Any member of a cluster is as good; one that has no majority is not.
func TestClusterMember(t *testing.T) {
	t.Parallel()
	c := ovnlab.NewCluster(t, 3)
	leader := c.Leader()
	seed(t, c.Endpoints[leader])
	others := slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == leader })
	w := watch(t, Options{Endpoints: []string{c.Endpoints[others[0]]}, Register: registration("weir", "lb1", geneve("192.0.2.9"))})
	w.port("net", "10.0.0.5", "is on hv1", isOn("hv1"))
	w.until("the director is registered", registered)
	transact(t, c.Endpoints[leader], []ovsdb.Operation{move("p0", rowID(t, c.Endpoints[leader], "hv2"))})
	w.port("net", "10.0.0.5", "is on hv2", isOn("hv2"))
	c.Kill(leader)
	c.Kill(others[1])
	s := w.until("a member without a majority is refused", func(s *Snapshot) error {
		if s.Status.Connected || s.Status.Problem == nil || !strings.Contains(s.Status.Problem.Error(), "no connection to its cluster") {
			return fmt.Errorf("the problem is %w", s.Status.Problem)
		}
		return nil
	})
	if n, err := s.Network("net"); err != nil {
		t.Error("the last state is lost:", err)
	} else if p, has := s.Port(n.ID, address("10.0.0.5")); !has || !isOn("hv2")(p) {
		t.Errorf("the last state is lost: %+v", p)
	}
	c.Start(leader)
	w.until("with a majority it is followed again", connected)
}

// seed writes two hosts and a port on the first.
func seed(t *testing.T, endpoint string) {
	t.Helper()
	operations := []ovsdb.Operation{insert("SB_Global", map[string]any{}),
		insert("Datapath_Binding", map[string]any{"tunnel_key": 7, "external_ids": ovsdb.Map{"logical-switch": "s", "name": "net"}})}
	for i := range 2 {
		name, encap := fmt.Sprintf("hv%d", i+1), fmt.Sprintf("e%d", i+1)
		operations = append(operations,
			ovsdb.Operation{"op": "insert", "table": "Encap", "uuid-name": encap, "row": map[string]any{"type": "geneve", "ip": fmt.Sprintf("192.0.2.%d", i+1), "chassis_name": name}},
			ovsdb.Operation{"op": "insert", "table": "Chassis", "uuid-name": name, "row": map[string]any{"name": name, "encaps": ovsdb.Named(encap)}})
	}
	transact(t, endpoint, append(operations, insert("Port_Binding", map[string]any{"logical_port": "p0", "datapath": ovsdb.Named("Datapath_Binding"),
		"tunnel_key": 3, "mac": "fa:16:3e:00:00:05 10.0.0.5", "chassis": ovsdb.Named("hv1")})))
}

// rowID returns a chassis's UUID.
func rowID(t *testing.T, endpoint, name string) string {
	t.Helper()
	rows := transact(t, endpoint, []ovsdb.Operation{{"op": "select", "table": "Chassis", "where": [][]any{{"name", "==", name}}, "columns": []string{"_uuid"}}})[0].Rows
	var id ovsdb.UUID
	if err := id.UnmarshalJSON(rows[0]["_uuid"]); err != nil {
		t.Fatal(err)
	}
	return string(id)
}

// A server that is there and does nothing is noticed, and one that goes on is followed again.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	n := ovnlab.New(t, ovnlab.Options{Databases: true})
	seed(t, n.SB)
	w := watch(t, Options{Endpoints: []string{n.TCP}})
	w.until("the database is known", connected)
	n.FreezeSB(true)
	w.until("the server's silence is noticed", func(s *Snapshot) error {
		if s.Status.Connected || s.Status.Problem == nil || !strings.Contains(s.Status.Problem.Error(), "has not answered for") {
			return fmt.Errorf("the problem is %w", s.Status.Problem)
		}
		return nil
	})
	n.FreezeSB(false)
	w.until("the database is known", connected)
}

// Servers and clients trust each other by certificates of one CA, as ovs-pki(8) makes them: without names.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca, other := ovnlab.NewAuthority(t), ovnlab.NewAuthority(t)
	server, client, stranger := ovsdb.TLS(ca.Certificate("weir", time.Hour)), ovsdb.TLS(ca.Certificate("weir", time.Hour)), ovsdb.TLS(other.Certificate("weir", time.Hour))
	old := ovsdb.TLS(ca.Certificate("weir", -time.Hour))
	n := ovnlab.New(t, ovnlab.Options{Databases: true, CA: server.CA, Cert: server.Cert, Key: server.Key})
	seed(t, n.SB)
	w := watch(t, Options{Endpoints: []string{n.SSL}, TLS: client})
	w.port("net", "10.0.0.5", "is on hv1", isOn("hv1"))
	w.stop()

	missing := client
	missing.Cert = filepath.Join(t.TempDir(), "missing.pem")
	noCA := client
	noCA.CA = client.Key
	for _, c := range []struct {
		name string
		tls  ovsdb.TLS
		says string
	}{
		{"a server of another CA", ovsdb.TLS{CA: stranger.CA, Cert: client.Cert, Key: client.Key}, "the server's certificate: x509: certificate signed by unknown authority"},
		{"a client of another CA", ovsdb.TLS{CA: client.CA, Cert: stranger.Cert, Key: stranger.Key}, "remote error: tls: unknown certificate authority"},
		{"a client that is too old", old, "remote error: tls: expired certificate"},
		{"a key of another certificate", ovsdb.TLS{CA: client.CA, Cert: client.Cert, Key: server.Key}, "private key does not match public key"},
		{"no certificate", missing, "missing.pem: no such file"},
		{"no CA", noCA, "has no certificate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			watch(t, Options{Endpoints: []string{n.SSL}, TLS: c.tls}).until("it is refused", func(s *Snapshot) error {
				if s.Status.Known || s.Status.Problem == nil || !strings.Contains(s.Status.Problem.Error(), n.SSL) || !strings.Contains(s.Status.Problem.Error(), c.says) {
					return fmt.Errorf("the problem is %w", s.Status.Problem)
				}
				return nil
			})
		})
	}
	if err := old.Outdated(time.Now()); err == nil || !strings.Contains(err.Error(), old.Cert) {
		t.Error("the certificate is not said to be outdated:", err)
	}
	if err := client.Outdated(time.Now()); err != nil {
		t.Error(err)
	}

	// A CA is renewed: the next connection has it.
	mended := ovsdb.TLS{CA: filepath.Join(t.TempDir(), "ca.pem"), Cert: client.Cert, Key: client.Key}
	copyFile(t, stranger.CA, mended.CA)
	w = watch(t, Options{Endpoints: []string{n.SSL}, TLS: mended})
	w.until("the server is refused", func(s *Snapshot) error {
		if s.Status.Problem == nil {
			return errors.New("it is not")
		}
		return nil
	})
	copyFile(t, client.CA, mended.CA)
	w.until("the server is trusted", connected)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
