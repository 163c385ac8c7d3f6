package test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weir.io/weir/lab/netlab"
)

// postgresPort is the server's: directors redirect to another port than the VIP's.
const postgresPort = 5433

var clientsSQL = redirectService{number: 4, port: 5432, to: postgresPort, fallback: "nat", backends: everyBackend(1)}

// callsPostgres asks a real PostgreSQL with its own client: a query, a large answer and a large
// upload, each over a connection whose SYN the director sees.
func (l *redirectLab) callsPostgres(t *testing.T) {
	startPostgres(t, l.backends[0])
	bothFamilies(t, func(t *testing.T, six bool) {
		psql := func(command string) string {
			t.Helper()
			var out string
			l.bypasses(t, 1, func() {
				out = on(t, l.client, "psql", "--no-psqlrc", "--no-align", "--tuples-only", "--set", "ON_ERROR_STOP=1",
					"--host", redirectVIP(clientsSQL.number, six).String(), "--port", strconv.Itoa(clientsSQL.port), "--username", "weir", "--dbname", "postgres", "--command", command)
			})
			return strings.TrimSpace(out)
		}
		if at, want := psql("SELECT host(inet_server_addr()), inet_server_port()"), fmt.Sprintf("%s|%d", lanAddress(backendHost, six), postgresPort); at != want {
			t.Errorf("the server says that it was called at %s, want %s: the backend's own", at, want)
		}
		const rows = 200000
		if lines := strings.Split(psql(fmt.Sprintf("COPY (SELECT generate_series(1, %d)) TO STDOUT", rows)), "\n"); len(lines) != rows || lines[rows-1] != strconv.Itoa(rows) {
			t.Errorf("the answer has %d rows and ends with %q, want %d", len(lines), lines[len(lines)-1], rows)
		}
		text := make([]byte, 0, 8*rows)
		for n := range rows {
			text = append(strconv.AppendInt(text, int64(n+1), 10), '\n')
		}
		table := map[bool]string{false: "four", true: "six"}[six]
		psql("CREATE TABLE " + table + " (n int)")
		psql(fmt.Sprintf(`\copy %s FROM '%s'`, table, write(t, l.client, "rows.txt", string(text))))
		if sum, want := psql("SELECT count(*), sum(n::bigint) FROM "+table), fmt.Sprintf("%d|%d", rows, rows*(rows+1)/2); sum != want {
			t.Errorf("of what was sent the server has %s, want %s", sum, want)
		}
	})
}

// startPostgres makes a database and starts a server for it, as the user postgres: it refuses
// to run as root.
func startPostgres(t *testing.T, h *netlab.Host) {
	t.Helper()
	// Debian keeps the server's programs out of PATH, in one directory for each version.
	programs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(programs) == 0 {
		t.Fatalf("there is no PostgreSQL (%v): make deps installs it", err)
	}
	slices.Sort(programs)
	program := func(name string) string { return filepath.Join(programs[len(programs)-1], name) }
	postgres, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	id, err := strconv.Atoi(postgres.Uid)
	if err != nil {
		t.Fatal(err)
	}
	// Not the host's own directory: only root may be able to reach it.
	dir, err := os.MkdirTemp("/tmp", "weir-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chown(dir, id, -1); err != nil {
		t.Fatal(err)
	}
	// From a directory that the user may read: the programs change back to where they were started.
	as := func(name string, args ...string) []string {
		return append([]string{"--chdir=/", "setpriv", "--reuid", postgres.Uid, "--regid", postgres.Gid, "--clear-groups", "--", program(name), "-D", dir}, args...)
	}
	on(t, h, "env", as("initdb", "--no-sync", "--no-locale", "--encoding", "UTF8", "--auth", "trust", "--username", "weir")...)
	rules, err := os.OpenFile(filepath.Join(dir, "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rules.WriteString("host all all all trust\n"); err != nil {
		t.Fatal(err)
	}
	if err := rules.Close(); err != nil {
		t.Fatal(err)
	}
	args := as("postgres", "-p", strconv.Itoa(postgresPort))
	for _, setting := range []string{"listen_addresses=*", "unix_socket_directories=", "fsync=off", "shared_buffers=16MB", "dynamic_shared_memory_type=mmap"} {
		args = append(args, "-c", setting)
	}
	startServer(t, h, netip.AddrPortFrom(netip.IPv4Unspecified(), postgresPort), "env", args...)
	// A killed server would leave its shared memory behind.
	t.Cleanup(func() {
		if out, err := h.Command(context.Background(), "env", as("pg_ctl", "stop", "--mode", "immediate")...).CombinedOutput(); err != nil {
			t.Errorf("stop PostgreSQL: %v\n%s", err, out)
		}
	})
	waitFor(t, "PostgreSQL to take connections", func() bool {
		_, err := tryOn(t, h, program("pg_isready"), "--host", "127.0.0.1", "--port", strconv.Itoa(postgresPort))
		return err == nil
	})
}
