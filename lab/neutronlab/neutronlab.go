// Package neutronlab runs a real Neutron for tests, over the OVN of lab/ovnlab: its API, and a MariaDB. There is no
// Keystone: whoever asks is an administrator.
package neutronlab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.io/weir/lab/ovnlab"
)

// Neutron builds its tables by all migrations of its history, which takes half a minute on a busy machine.
const patience = 3 * time.Minute

// Neutron is one whose processes end with the test.
type Neutron struct {
	URL string // of the API, without a version

	t       testing.TB
	venv    string
	dir     string
	started []*ovnlab.Daemon
}

// New starts a Neutron that manages an OVN. The directory has Python's programs and libraries: make neutron-venv.
func New(t testing.TB, venv string, of *ovnlab.OVN) *Neutron {
	t.Helper()
	venv, err := filepath.Abs(venv)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "neutron") // the test's own would be too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	at := freePort(t)
	n := &Neutron{URL: "http://" + at, t: t, venv: venv, dir: dir}
	n.startDatabase()
	n.write("neutron.conf", fmt.Sprintf(settings, filepath.Join(venv, "etc/neutron/api-paste.ini"), dir, n.socket(), dir))
	n.write("policy.yaml", policy)
	n.write("ml2.ini", fmt.Sprintf(ml2, ovnlab.Network, of.NB, of.SB))
	n.write("uwsgi.ini", fmt.Sprintf(uwsgi, at))
	n.run(n.program("neutron-db-manage"), "--config-file", n.file("neutron.conf"), "--config-file", n.file("ml2.ini"), "upgrade", "heads")
	n.start("uwsgi", n.program("pyuwsgi"), "--ini", n.file("uwsgi.ini"))
	n.wait("Neutron's API answers", func() error { return n.try(http.MethodGet, "networks", nil, nil) })
	return n
}

// The files of Neutron. Without a message bus (fake://) there are no agents but OVN's hosts, which Neutron finds in the
// Southbound database.
const (
	settings = `[DEFAULT]
core_plugin = ml2
service_plugins = ovn-router
auth_strategy = noauth
api_paste_config = %s
transport_url = fake://
state_path = %s
notify_nova_on_port_status_changes = false
notify_nova_on_port_data_changes = false
[database]
connection = mysql+pymysql://root@localhost/neutron?unix_socket=%s
[oslo_concurrency]
lock_path = %s
[oslo_policy]
policy_file = policy.yaml
`
	// Nova moves VMs as a service.
	policy = `"service_api": "rule:context_is_admin"
`
	ml2 = `[ml2]
type_drivers = flat,geneve
tenant_network_types = geneve
mechanism_drivers = ovn
extension_drivers = port_security
[ml2_type_flat]
flat_networks = %s
[ml2_type_geneve]
vni_ranges = 3000:4000
max_header_size = 38
[ovn]
ovn_nb_connection = %s
ovn_sb_connection = %s
ovn_metadata_enabled = true
`
	// ml2/ovn wants to know when all workers of the API have started: start-time.
	uwsgi = `[uwsgi]
http = %s
add-header = Connection: close
http-timeout = 120
module = neutron.wsgi.api:application
master = true
no-orphans = true
die-on-term = true
processes = 2
threads = 4
lazy-apps = true
enable-threads = true
need-app = true
buffer-size = 65535
start-time = %%t
`
)

// startDatabase starts a MariaDB with an empty database, and waits until it answers.
func (n *Neutron) startDatabase() {
	n.t.Helper()
	data := n.file("data")
	n.run("mariadb-install-db", "--no-defaults", "--user=root", "--auth-root-authentication-method=normal", "--skip-test-db", "--datadir="+data)
	n.write("init.sql", "CREATE DATABASE neutron;\n")
	// What a power cut would lose does not matter.
	n.start("mariadbd", "mariadbd", "--no-defaults", "--user=root", "--datadir="+data, "--socket="+n.socket(), "--pid-file="+n.file("pid"),
		"--skip-networking", "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M", "--init-file="+n.file("init.sql"))
	n.wait("MariaDB answers", func() error {
		conn, err := net.Dial("unix", n.socket())
		if err == nil {
			conn.Close()
		}
		return err
	})
}

func (n *Neutron) socket() string { return n.file("db.sock") }

func (n *Neutron) file(name string) string { return filepath.Join(n.dir, name) }

// program is one of the venv's.
func (n *Neutron) program(name string) string { return filepath.Join(n.venv, "bin", name) }

func (n *Neutron) write(name, text string) {
	n.t.Helper()
	if err := os.WriteFile(n.file(name), []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// Get reads an object, or a list of them, by its path after the version: "ports/ID".
func (n *Neutron) Get(path string, into any) {
	n.t.Helper()
	n.must(http.MethodGet, path, nil, into)
}

// Create makes an object of a collection, such as "networks", and returns its ID, if it has one. The body has the object
// in its member of the object's kind: {"network": {...}}.
func (n *Neutron) Create(collection string, body any) (id string) {
	n.t.Helper()
	var made map[string]struct {
		ID string `json:"id"`
	}
	n.must(http.MethodPost, collection, body, &made)
	for _, object := range made {
		id = object.ID
	}
	return id
}

// Update changes an object, or does with it what the path says.
func (n *Neutron) Update(path string, body any) {
	n.t.Helper()
	n.must(http.MethodPut, path, body, nil)
}

// Delete deletes an object.
func (n *Neutron) Delete(path string) {
	n.t.Helper()
	n.must(http.MethodDelete, path, nil, nil)
}

func (n *Neutron) must(method, path string, body, into any) {
	n.t.Helper()
	if err := n.try(method, path, body, into); err != nil {
		n.t.Fatalf("%v\n%s", err, n.Log())
	}
}

// try asks the API.
func (n *Neutron) try(method, path string, body, into any) error {
	var text bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&text).Encode(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(n.t.Context(), method, n.URL+"/v2.0/"+path, &text)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if response.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

// OpenStack runs a command of openstack(1), as an administrator, and returns what it prints.
func (n *Neutron) OpenStack(args ...string) string {
	n.t.Helper()
	return n.run(n.program("openstack"), append([]string{"--os-auth-type=none", "--os-endpoint=" + n.URL}, args...)...)
}

// Log returns what the API has said.
func (n *Neutron) Log() string {
	for _, p := range n.started {
		if p.Name == "uwsgi" {
			return p.Log()
		}
	}
	return ""
}

// start starts a daemon that ends with the test.
func (n *Neutron) start(name, program string, args ...string) {
	n.t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir = n.dir
	cmd.Env = append(os.Environ(), "TMPDIR="+n.dir, "OS_NEUTRON_CONFIG_DIR="+n.dir, "OS_NEUTRON_CONFIG_FILES=neutron.conf;ml2.ini")
	n.started = append(n.started, ovnlab.StartDaemon(n.t, nil, name, cmd))
}

// run runs a program that ends, and returns what it prints.
func (n *Neutron) run(program string, args ...string) string {
	n.t.Helper()
	cmd := exec.Command(program, args...)
	var said bytes.Buffer
	cmd.Dir, cmd.Stderr = n.dir, &said
	out, err := cmd.Output()
	if err != nil {
		n.t.Fatalf("%s %s: %v\n%s%s\n%s", program, strings.Join(args, " "), err, out, &said, n.Log())
	}
	return string(out)
}

func (n *Neutron) wait(what string, try func() error) {
	n.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		for _, p := range n.started {
			select {
			case <-p.Ended:
				err = errors.Join(err, fmt.Errorf("%s has ended", p.Name))
				end = time.Time{}
			default:
			}
		}
		if time.Now().After(end) {
			var logs strings.Builder
			for _, p := range n.started {
				fmt.Fprintf(&logs, "\n%s:\n%s", p.Name, p.Log())
			}
			n.t.Fatalf("never: %s: %v%s", what, err, &logs)
		}
	}
}

// freePort returns an address of the loopback that only the tests use.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
