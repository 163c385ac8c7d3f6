package kube

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
	"weir.io/weir/lab/process"
)

// costs is what each process that takes part in a change has used until now, and how much etcd has
// received, sent and stored.
type costs struct {
	at            time.Time
	cpu           map[string]time.Duration
	heard, said   float64 // bytes that etcd received and sent
	written, puts float64 // bytes of stored keys, and how many
}

// manyLab is a group's lab with many Services.
type manyLab struct {
	*groupLab
	pids  map[string]int // of processes, by name
	names []string       // of the processes, in order
}

func (l *manyLab) follow(name string, pid int) {
	l.pids[name], l.names = pid, append(l.names, name)
}

func (l *manyLab) costs() costs {
	l.t.Helper()
	c := costs{at: time.Now(), cpu: map[string]time.Duration{}}
	for name, pid := range l.pids {
		spent, err := process.CPUTimeOf(pid)
		if err != nil {
			l.t.Fatalf("%s: %v", name, err)
		}
		c.cpu[name] = spent
	}
	client := http.Client{Transport: &http.Transport{DialContext: l.host.DialContext, DisableKeepAlives: true}}
	answer, err := client.Get("http://127.0.0.1:2379/metrics")
	if err != nil {
		l.t.Fatalf("ask etcd: %v", err)
	}
	defer answer.Body.Close()
	to := map[string]*float64{"etcd_network_client_grpc_received_bytes_total": &c.heard, "etcd_network_client_grpc_sent_bytes_total": &c.said,
		"etcd_debugging_mvcc_total_put_size_in_bytes": &c.written, "etcd_mvcc_put_total": &c.puts}
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if number := to[name]; number != nil {
			if *number, err = strconv.ParseFloat(value, 64); err != nil {
				l.t.Fatalf("read etcd's %s: %v", name, err)
			}
		}
	}
	return c
}

// logCosts logs the costs between two moments for each of this many changes. It subtracts those of
// an equally long time without changes: from idle to before.
func (l *manyLab) logCosts(what string, idle, before, after costs, changes int) {
	l.t.Helper()
	share := float64(after.at.Sub(before.at)) / float64(before.at.Sub(idle.at))
	per := func(idle, before, after float64) float64 {
		return (after - before - (before-idle)*share) / float64(changes)
	}
	var cpu []string
	for _, name := range l.names {
		quiet := float64(before.cpu[name] - idle.cpu[name])
		spent := per(float64(idle.cpu[name]), float64(before.cpu[name]), float64(after.cpu[name]))
		cpu = append(cpu, fmt.Sprintf("%s %.1f ms (idle %.1f %%)", name, spent/1e6, 100*quiet/float64(before.at.Sub(idle.at))))
	}
	l.t.Logf("each of %d changes, %s, takes of a CPU: %s; etcd hears %.0f kB for it, says %.0f kB, and puts %.1f keys of %.0f kB", changes, what, strings.Join(cpu, ", "),
		per(idle.heard, before.heard, after.heard)/1e3, per(idle.said, before.said, after.said)/1e3,
		per(idle.puts, before.puts, after.puts), per(idle.written, before.written, after.written)/1e3)
}

func (l *manyLab) logProcesses(when string) {
	l.t.Helper()
	var all []string
	for _, name := range l.names {
		memory, err := process.MemoryOf(l.pids[name])
		if err != nil {
			l.t.Fatal(err)
		}
		spent, err := process.CPUTimeOf(l.pids[name])
		if err != nil {
			l.t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s %d MiB, its own %d, %d at most, %.1f s of a CPU", name, memory.Resident>>20, memory.Anonymous>>20, memory.Peak>>20, spent.Seconds()))
	}
	l.t.Logf("%s: %s", when, strings.Join(all, "; "))
}

// forwarded returns how many of the group's services a director has.
func (n *labNode) forwarded() (services int) {
	sets, err := n.api.Sets(n.l.t.Context())
	if err != nil {
		return 0
	}
	for _, s := range sets {
		if strings.HasPrefix(s.Owner, "kube.edge.") {
			services += s.Services
		}
	}
	return services
}

// backends returns how many backends a director has for one of the Services.
func (n *labNode) backends(set int, service string) int {
	l, owner := n.l, fmt.Sprintf("kube.edge.%d", set)
	documents, err := n.api.Documents(l.t.Context(), owner)
	if err != nil {
		return -1
	}
	for i := range documents {
		if s := &documents[i].Service; strings.HasPrefix(s.Name, namespace+"/"+service+"/") {
			return len(s.Backends)
		}
	}
	return -1
}

// setsOf returns the set of each Service.
func (l *manyLab) setsOf() (of map[string]int) {
	l.t.Helper()
	text, err := l.core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1/directorsets").Do(l.t.Context()).Raw()
	if err != nil {
		l.t.Fatal(err)
	}
	var list v1alpha1.DirectorSetList
	if err := json.Unmarshal(text, &list); err != nil {
		l.t.Fatal(err)
	}
	of = map[string]int{}
	for i := range list.Items {
		for _, s := range list.Items[i].Spec.Services {
			of[strings.TrimPrefix(s.Name, namespace+"/")] = int(s.Set)
		}
	}
	l.t.Logf("%d Services are in %d DirectorSets, of %d bytes together", len(of), len(list.Items), len(text))
	return of
}

// said returns what was added to a file, and its length now.
func said(t *testing.T, path string, from int64) ([]byte, int64) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var text bytes.Buffer
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := text.ReadFrom(f); err != nil {
		t.Fatal(err)
	}
	return text.Bytes(), from + int64(text.Len())
}

// awaitApplied waits until a director's log says that it has applied a changed set, and returns where the
// log then ends. Asking the director for the set would cost it more than the change.
func (n *labNode) awaitApplied(set int, from int64) int64 {
	n.l.t.Helper()
	want := fmt.Appendf(nil, `"msg":"set applied","owner":"kube.edge.%d",`, set)
	waitLonger(n.l.t, time.Millisecond, fmt.Sprintf("%s to take set %d", n.Name, set), func() bool {
		text, end := said(n.l.t, n.at("director.log"), from)
		if line := bytes.Index(text, want); line < 0 || !bytes.Contains(text[line:], []byte("\n")) {
			return false
		}
		from = end
		return true
	})
	return from
}

// changes is how many EndpointSlices change.
const changes = 20

// changed is the Service whose EndpointSlice is the nth to change.
func changed(n int) int { return 1 + n*37%(*many/2-1) }

// isReal reports whether a Service has the lab's pods as endpoints: clients' requests go to these
// Services.
func isReal(i int) bool { return i == 0 || i == *many/2 || i == *many-1 }

func (l *manyLab) slice(i, endpoints int) *discoveryv1.EndpointSlice {
	s := l.manySlice(i, endpoints)
	if isReal(i) {
		s.Endpoints = s.Endpoints[:min(3, len(s.Endpoints))]
		for j := range s.Endpoints {
			s.Endpoints[j].Addresses = []string{podAddress(1 + j)}
		}
	}
	return s
}

// loseState removes the director's state. Its file belongs to the sidecar.
func (n *labNode) loseState() {
	n.l.t.Helper()
	all, err := os.ReadDir(n.at("state"))
	if err != nil {
		n.l.t.Fatal(err)
	}
	for _, one := range all {
		if one.Name() == "weir.yaml" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(n.at("state"), one.Name())); err != nil {
			n.l.t.Fatal(err)
		}
	}
}

// Many Services of a group of directors all get an address and reach the directors, through
// DirectorSets, etcd and sidecars. Later changes get there, too, also to a director that has lost
// its state.
func TestManyServicesOfGroup(t *testing.T) {
	l := newManyLab(t)
	l.makeAll()
	sets := l.setsOf()
	l.quiet()
	l.logProcesses("at rest")
	l.changeSome(sets)
	l.logProcesses("in the end")

	n := l.nodes[1]
	stop(t, n.weir)
	n.loseState()
	began := time.Now()
	n.startDirector()
	waitLonger(t, 50*time.Millisecond, "a director that begins anew to forward all Services", func() bool { return n.forwarded() == *many })
	spent, err := process.CPUTimeOf(n.weir.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a director that begins without any forwards all %s after its start, which takes it %.1f s of a CPU", time.Since(began), spent.Seconds())
	l.askReal()
}

// makeAll makes all Services, and waits until they have addresses and are forwarded.
func (l *manyLab) makeAll() {
	t := l.t
	t.Helper()
	began, made := l.createMany(func(i int) *discoveryv1.EndpointSlice { return l.slice(i, *endpoints) })
	for _, n := range l.nodes {
		waitLonger(t, 500*time.Millisecond, n.Name+" to forward all Services", func() bool { return n.forwarded() == *many })
	}
	t.Logf("%d Services with %d endpoints each were made in %s, and both directors forwarded all %s later", *many, *endpoints, made.Sub(began), time.Since(made))
	waitLonger(t, 500*time.Millisecond, "all Services to have an address", func() bool { return len(l.allAddresses()) == *many })
	t.Logf("all had an address %s after the last was made", time.Since(made))
	l.askReal()
	l.logProcesses("with all of them")
}

// askReal lets the client ask the Services whose endpoints are pods.
func (l *manyLab) askReal() {
	l.t.Helper()
	addresses := l.allAddresses()
	for i := range *many {
		if isReal(i) {
			l.reaches(addresses[fmt.Sprintf("s%d", i)], "pod1", "pod2", "pod3")
		}
	}
}

// changeSome changes EndpointSlices, one after the other, and logs the costs.
func (l *manyLab) changeSome(sets map[string]int) {
	t := l.t
	t.Helper()
	idle := l.costs()
	l.untilRenewed()
	before := l.costs()
	var took []time.Duration
	ends := make([]int64, len(l.nodes))
	for i, n := range l.nodes {
		_, ends[i] = said(t, n.at("director.log"), 0)
	}
	for n := range changes {
		i := changed(n)
		began := time.Now()
		l.putSlice(l.slice(i, *endpoints-1))
		for j, node := range l.nodes {
			ends[j] = node.awaitApplied(sets[fmt.Sprintf("s%d", i)], ends[j])
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("one EndpointSlice that changes is at both directors after %s (median of %d), %s at most", took[len(took)/2], changes, took[len(took)-1])
	l.logCosts("until it is there", idle, before, l.costs(), changes)
	l.quiet() // until the old generations of these changes have gone, too
	l.logCosts("with what follows until their generations have left the logs", idle, before, l.costs(), changes)
	for _, n := range l.nodes {
		for c := range changes {
			name := fmt.Sprintf("s%d", changed(c))
			if has := n.backends(sets[name], name); has != *endpoints-1 {
				t.Errorf("%s has %d backends of %s, which has %d endpoints", n.Name, has, name, *endpoints-1)
			}
		}
	}
}

func newManyLab(t *testing.T) *manyLab {
	t.Helper()
	l := &manyLab{groupLab: newGroupLab(t, groupOptions{values: "testdata/many.values.yaml", pool: "203.0.0.0/16", nodes: 2}), pids: map[string]int{}}
	if _, _, err := l.make("{apiVersion: weir.io/v1alpha1, kind: ServicePolicy, metadata: {name: all, namespace: default}, spec: {selector: {}, drain: 5s}}"); err != nil {
		t.Fatal(err)
	}
	controller := l.controller("first")
	l.waitForLease("first")
	l.waitForStatus("node-a node-b, 0 stand by")
	l.follow("controller", controller.Process.Pid)
	for _, n := range l.nodes {
		n.Route("10.128.0.0/9", podAddress(1))
		l.follow("sidecar of "+n.Name, n.sidecar.Process.Pid)
		l.follow("director of "+n.Name, n.weir.Process.Pid)
	}
	for _, one := range [][2]string{{"API server", "--etcd-servers"}, {"etcd", "--data-dir"}} {
		pid, err := process.Find(l.host, one[1])
		if err != nil {
			t.Fatal(err)
		}
		l.follow(one[0], pid)
	}
	return l
}

// quiet waits until no DirectorSet was written for longer than a generation stays in a log,
// including the notice before.
func (l *manyLab) quiet() {
	l.t.Helper()
	version, since := "", time.Now()
	waitLonger(l.t, time.Second, "DirectorSets to stay as they are", func() bool {
		if is := l.setsVersions(); is != version {
			version, since = is, time.Now()
		}
		return time.Since(since) > 8*time.Second
	})
}

// untilRenewed waits until all directors have renewed their Leases twice, as they do when idle.
func (l *manyLab) untilRenewed() {
	l.t.Helper()
	for _, n := range l.nodes {
		last, times := "", -1
		waitLonger(l.t, 100*time.Millisecond, n.Name+" to renew its Lease", func() bool {
			lease, err := l.coordination.Leases("weir-system").Get(l.t.Context(), group.LeaseName("edge", n.Name), metav1.GetOptions{})
			if err != nil || lease.Spec.RenewTime == nil {
				return false
			}
			if is := lease.Spec.RenewTime.String(); is != last {
				last, times = is, times+1
			}
			return times == 2
		})
	}
}

// setsVersions returns the versions of all DirectorSets, without their content.
func (l *manyLab) setsVersions() string {
	text, err := l.core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1/directorsets").Param("resourceVersion", "0"). // not from etcd
																SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(l.t.Context()).Raw()
	if err != nil {
		return ""
	}
	var list metav1.PartialObjectMetadataList
	if json.Unmarshal(text, &list) != nil {
		return ""
	}
	var versions []string
	for _, o := range list.Items {
		versions = append(versions, o.Name+" "+o.ResourceVersion)
	}
	slices.Sort(versions)
	return strings.Join(versions, "\n")
}
