package node

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// beside is a node, the director of a group with node ports, and its weir run.
type beside struct {
	*Node
	t     *testing.T
	run   *listening
	group *v1alpha1.DirectorGroup
	now   time.Time
}

// newBeside returns them with withNodePorts' Service, before anything was done.
func newBeside(t *testing.T, also ...model.Service) *beside {
	t.Helper()
	dir := t.TempDir()
	b := &beside{t: t, run: &listening{file: filepath.Join(dir, "weir.yaml"), runs: model.Config{Director: model.Director{Interfaces: []string{"eth0"}}}, sets: map[string][]model.Document{}}, now: time.Now()}
	b.run.runs.SetDefaults()
	listener, err := api.Listen(filepath.Join(dir, "director.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := api.NewServer(b.run, b.run, slog.New(slog.DiscardHandler))
	server.HandleSets(b.run)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error("the server ended with an error:", err)
		}
	})
	b.again()
	b.group = groupOf("10s", "a")
	b.group.Spec.NodePorts = &v1alpha1.DirectorNodePorts{}
	b.group.Status.KernelSources = []string{"10.0.0.7/32", "FD00:244::/64"}
	d := withNodePorts()
	for _, s := range also {
		d.documents = append(d.documents, model.Document{Service: s, Log: d.documents[0].Log})
	}
	c, err := group.Encode("shop/web", 0, 7, d.documents)
	if err != nil {
		t.Fatal(err)
	}
	c.NodePorts = d.of.NodePorts
	o := &v1alpha1.DirectorSet{Spec: v1alpha1.DirectorSetSpec{Group: "edge", Count: 1, Services: []v1alpha1.CompiledService{c}}}
	o.Name = group.ObjectName("edge", 0)
	b.has(o)
	return b
}

// again lets another sidecar begin, of which nothing is followed yet.
func (b *beside) again() {
	b.t.Helper()
	nowhere := &rest.Config{Host: "http://127.0.0.1:1"}
	dir := filepath.Dir(b.run.file)
	n, err := New(nowhere, nowhere, Options{Group: "edge", Node: "a", Owner: "kube", Socket: filepath.Join(dir, "director.sock"), File: b.run.file}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.t.Fatal(err)
	}
	if b.Node != nil {
		for _, o := range b.set.GetStore().List() {
			_ = n.set.GetStore().Add(o)
		}
	}
	_ = n.node.GetStore().Add(nodeOf())
	n.answers.Store(true)
	b.Node = n
}

func (b *beside) has(o *v1alpha1.DirectorSet) {
	b.t.Helper()
	if err := b.set.GetStore().Update(o); err != nil {
		b.t.Fatal(err)
	}
}

// passes makes one pass, a second later, with the group as it is.
func (b *beside) passes() {
	b.t.Helper()
	b.now = b.now.Add(again)
	if err := b.Node.group.GetStore().Update(b.group.DeepCopy()); err != nil {
		b.t.Fatal(err)
	}
	b.pass(b.t.Context(), b.now)
}

// settles makes passes, with a director that reads its file.
func (b *beside) settles() {
	b.t.Helper()
	for range 2 {
		b.passes()
		b.run.reads(b.t)
	}
	b.passes()
}

// is fails unless the director has so many node ports, its file leaves so many prefixes to the
// kernel, and it is said that it lacks node ports for this reason.
func (b *beside) is(what string, ports, left int, lacks string) {
	b.t.Helper()
	c, err := config.Load(b.run.file)
	if err != nil {
		b.t.Fatal(err)
	}
	if n := len(c.Director.KernelSources); b.run.ports() != ports || n != left || !strings.Contains(b.lacksPorts, lacks) || lacks == "" && b.lacksPorts != "" {
		b.t.Errorf("%s: the director has %d services at node ports, its file leaves %d prefixes to the kernel, and it lacks ports because %q; want %d, %d, %q", what, b.run.ports(), n, b.lacksPorts, ports, left, lacks)
	}
}

// A director is given node ports when it leaves the sources in its file to the kernel, which other
// changes do not show. Where it does not do so for new sources, the node says so, and changed node
// ports are still put.
func TestGivenNodePorts(t *testing.T) {
	b := newBeside(t)
	b.answers.Store(false)
	b.passes()
	b.is("it does not answer", 0, 2, "does not answer")
	b.answers.Store(true)
	b.passes()
	b.passes()
	b.is("it has not read its file", 0, 2, "does not leave to kube-proxy yet whom its file says")
	b.run.reads(t)
	b.passes()
	b.is("it has", 3, 2, "") // two of IPv4, one of IPv6
	b.answers.Store(false)
	b.passes()
	b.is("it answers no more, and goes on", 3, 2, "")
	b.answers.Store(true)

	b.group.Status.KernelSources = append(b.group.Status.KernelSources, "10.0.0.9/32")
	b.passes()
	b.is("there is another node", 3, 3, "does not leave to kube-proxy yet")
	none := b.set.GetStore().List()[0].(*v1alpha1.DirectorSet).DeepCopy()
	none.Spec.Services[0].NodePorts, none.Spec.Services[0].Revision = none.Spec.Services[0].NodePorts[:1], 8
	b.has(none)
	b.passes()
	b.is("and another port", 2, 3, "does not leave to kube-proxy yet")
	b.run.reads(t)
	b.passes()
	b.is("it has read that", 2, 3, "")

	damaged := none.DeepCopy()
	damaged.Spec.Services[0].Documents, damaged.Spec.Services[0].Revision = []byte("none"), 9
	b.again()
	b.has(damaged)
	b.passes()
	b.is("another sidecar cannot read the Service", 2, 3, "some Services cannot be read")
}

// Another process of the director is given node ports as any, and what it may have is looked for.
func TestNodePortsOfAnotherProcess(t *testing.T) {
	b := newBeside(t)
	b.settles()
	b.is("at first", 3, 2, "")
	had := b.run.becomes(map[string][]model.Document{})
	b.restarted.Store(true)
	b.passes()
	b.is("it has lost its state", 3, 2, "")

	b.group.Spec.NodePorts = nil
	b.settles()
	b.is("it is to have none", 0, 0, "")
	b.run.becomes(had)
	b.restarted.Store(true)
	b.passes()
	b.is("it has what it had long ago", 0, 0, "")
}

// The sources that the director leaves to the kernel stay in its file for as long as it may have
// node ports.
func TestFileWhileThereAreNodePorts(t *testing.T) {
	for _, test := range []struct {
		what    string
		change  func(b *beside)
		ports   int
		left    int
		lacks   string
		settled int // prefixes, when all goes well again
	}{
		{"they are taken out", func(b *beside) { b.group.Spec.NodePorts = nil }, 0, 0, "", 0},
		{"it refuses to have none", func(b *beside) { b.group.Spec.NodePorts = nil; b.run.refuses(true) }, 3, 2, "", 0},
		{"it does not answer", func(b *beside) { b.group.Spec.NodePorts = nil; b.answers.Store(false) }, 3, 2, "", 0},
		{"the status says nothing", func(b *beside) { b.group.Status.KernelSources = nil }, 3, 2, "not known yet whom", 2},
		{"another sidecar begins, and the status says nothing", func(b *beside) {
			b.again()
			b.group.Status.KernelSources = nil
		}, 3, 2, "not known yet whom", 2},
		{"another sidecar begins, and it does not answer", func(b *beside) {
			b.again()
			b.answers.Store(false)
			b.group.Spec.NodePorts = nil
		}, 3, 2, "", 0},
		{"it drains", func(b *beside) { b.group.Status.Directors = nil }, 3, 2, "", 2},
		{"it drains, and the status says nothing", func(b *beside) { b.group.Status = v1alpha1.DirectorGroupStatus{} }, 3, 2, "", 2},
		{"it drains, refuses, and is to have none", func(b *beside) {
			b.group.Spec.NodePorts, b.group.Status.Directors = nil, nil
			b.run.refuses(true)
		}, 3, 2, "", 0},
	} {
		t.Run(test.what, func(t *testing.T) {
			b := newBeside(t)
			b.settles()
			b.is("at first", 3, 2, "")
			test.change(b)
			b.passes()
			b.is("then", test.ports, test.left, test.lacks)
			b.run.refuses(false)
			b.answers.Store(true)
			b.settles()
			if ports := map[bool]int{true: 3}[test.settled > 0]; b.run.ports() != ports {
				t.Errorf("when all goes well it has %d services at node ports, want %d", b.run.ports(), ports)
			}
			b.is("when all goes well", b.run.ports(), test.settled, test.lacks)
		})
	}
}

// A node that is no director any more has no node ports, and says so until it is a director again.
func TestNodePortsOfStandby(t *testing.T) {
	b := newBeside(t)
	b.settles()
	b.group.Status.Directors = nil
	b.passes()
	b.now = b.now.Add(time.Minute)
	b.settles()
	b.is("it stands by", 0, 2, notYet)
	b.group.Status.Directors = []v1alpha1.Director{{Node: "a"}}
	b.settles()
	b.is("it is one again", 3, 2, "")
}

// A Service whose backends are nodes, and thereby addresses that node ports are at, is nobody's
// loss; but one in nat at the very port comes first.
func TestNodePortsBesideNodes(t *testing.T) {
	for _, test := range []struct {
		mode  model.Mode
		port  uint16
		ports int
		lacks string
	}{
		{model.L2DSR, 0, 3, ""}, {model.IPIP, 0, 3, ""}, {model.GUE, 0, 3, ""}, {model.NAT, 31000, 3, ""},
		{model.NAT, 30080, 0, "10.0.0.7 is the VIP of service"},
	} {
		s := model.Service{Name: "shop/nodes", VIP: netip.MustParseAddr("203.0.113.9"), Protocol: model.TCP, Port: model.PortRange{First: 8081, Last: 8081}, Mode: test.mode, SourceRanges: []netip.Prefix{}}
		backend := model.NewBackend()
		backend.Name, backend.Address, backend.Port = "a", netip.MustParseAddr("10.0.0.7"), test.port
		s.Backends = []model.Backend{backend}
		b := newBeside(t, s)
		b.settles()
		b.is("in "+test.mode.String(), test.ports, 2, test.lacks)
		// So does the agent's file, which has both.
		f := factsOf("a", nodeOf(), nil)
		list := []decoded{withNodePorts(), {of: &v1alpha1.CompiledService{Name: "shop/nodes"}, documents: []model.Document{{Service: s}}}}
		list[0].documents[0].Service.Backends[0].Host = f.V4
		ports := func(d *decoded) []model.Document { return d.atDirectors(d.of.NodePorts, f.addresses()) }
		if _, err := agentFile(list, ports, []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")}, &f, nil, nil); err != nil {
			t.Errorf("in %s: %v", test.mode, err)
		}
	}
}
