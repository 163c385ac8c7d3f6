package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// balancers is a plan with LoadBalancers of namespace red, in vlan:7 of a group that lets red use it.
type balancers struct {
	*plan
	t     *testing.T
	begun time.Time
	made  int
}

func newBalancers(t *testing.T) *balancers {
	t.Helper()
	b := &balancers{plan: newPlan(), t: t, begun: time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)}
	b.groups(b.group("edge", `red`))
	return b
}

// group returns a group that lets a namespace use vlan:7.
func (b *balancers) group(name, namespace string) *translate.DirectorGroup {
	b.t.Helper()
	g := &v1alpha1.DirectorGroup{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1alpha1.DirectorGroupSpec{Interfaces: []string{"eth0"},
		Segments: []v1alpha1.DirectorSegment{{ID: "vlan:7", Namespaces: []string{namespace}}}}}
	read, err := translate.ReadDirectorGroup(g, translate.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	return read
}

func (b *balancers) groups(list ...*translate.DirectorGroup) {
	b.read = &resources{groups: list, staff: map[string]staff{}}
	for _, g := range list {
		b.read.staff[g.Of.Name] = staff{directors: []group.Candidate{{Presence: group.Presence{Node: "a", Addresses: []string{"10.1.0.1"}}}}}
		b.read.allGroups = append(b.read.allGroups, g.Of)
	}
	b.allUnsettled()
}

// add adds a LoadBalancer, later than those before it, whose status is as given.
func (b *balancers) add(name string, status v1alpha1.LoadBalancerStatus, change ...func(*v1alpha1.LoadBalancerSpec)) *wish {
	b.t.Helper()
	b.made++
	of := &v1alpha1.LoadBalancer{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: name, UID: types.UID(fmt.Sprint(name, b.made)), CreationTimestamp: metav1.NewTime(b.begun.Add(time.Duration(b.made) * time.Minute))},
		Spec: v1alpha1.LoadBalancerSpec{Segment: "vlan:7", Addresses: []v1alpha1.Address{"10.0.0.1"},
			Listeners: []v1alpha1.LoadBalancerListener{{Name: "http", Protocol: "tcp", Ports: "80", Mode: "l2dsr", Members: []v1alpha1.LoadBalancerMember{{Name: "a", Address: "10.0.0.11"}}}}}, Status: status}
	for _, f := range change {
		f(&of.Spec)
	}
	read, problems := b.readBalancer(translate.LoadBalancerName(of), of)
	b.ask(wish{balancer: read}, read.Request(), problems)
	return b.byName[read.Name()]
}

// pass does what a pass does, and returns who has which addresses, and what is wrong with the others.
func (b *balancers) pass() string {
	b.govern(func(metav1.Object) map[string]string { return nil })
	b.assign()
	var list []string
	for _, w := range b.of {
		reason, _ := texts(w.problems[governing], w.problems[claiming])
		list = append(list, fmt.Sprintf("%s%v%s", w.name().Name, w.addresses, reason))
	}
	b.unsettled = map[*wish]bool{}
	return strings.Join(list, " ")
}

// An address of a segment has one LoadBalancer: the one that has it already, else the oldest. One that
// may not use the segment keeps it from nobody.
func TestSegmentsAddressesHaveOneOwner(t *testing.T) {
	had := v1alpha1.LoadBalancerStatus{Segment: "vlan:7", Addresses: []string{"10.0.0.1"}}
	check := func(b *balancers, want string) {
		t.Helper()
		if got := b.pass(); got != want {
			t.Errorf("they have %s, want %s", got, want)
		}
	}
	b := newBalancers(t)
	b.add("old", v1alpha1.LoadBalancerStatus{})
	b.add("young", v1alpha1.LoadBalancerStatus{})
	check(b, "old[10.0.0.1] young[]Conflict")
	b.forget(pool.Service{Kind: pool.LoadBalancer, Namespace: "red", Name: "old"})
	check(b, "young[10.0.0.1]")

	// What is gone and forwards on gives way.
	b.add("next", v1alpha1.LoadBalancerStatus{})
	check(b, "young[10.0.0.1] next[]Conflict")
	b.of[0].leaves, b.claimsOver = b.begun, true
	check(b, "young[]Conflict next[10.0.0.1]")

	// The next process reads who has it.
	b = newBalancers(t)
	b.add("old", v1alpha1.LoadBalancerStatus{})
	b.add("young", had)
	check(b, "old[]Conflict young[10.0.0.1]")
	b.add("other", v1alpha1.LoadBalancerStatus{}, func(s *v1alpha1.LoadBalancerSpec) { s.Addresses = []v1alpha1.Address{"10.0.0.2"} })
	check(b, "old[]Conflict young[10.0.0.1] other[10.0.0.2]")

	// An older one that comes to want it does not take it away.
	b = newBalancers(t)
	b.add("old", v1alpha1.LoadBalancerStatus{}, func(s *v1alpha1.LoadBalancerSpec) { s.Addresses = []v1alpha1.Address{"10.0.0.2"} })
	young := b.add("young", v1alpha1.LoadBalancerStatus{})
	check(b, "old[10.0.0.2] young[10.0.0.1]")
	old := b.byName[pool.Service{Kind: pool.LoadBalancer, Namespace: "red", Name: "old"}]
	changed := old.balancer.Of.DeepCopy()
	changed.Generation, changed.Spec.Addresses = 2, young.balancer.Of.Spec.Addresses
	read, problems := b.readBalancer(translate.LoadBalancerName(changed), changed)
	b.ask(wish{balancer: read}, read.Request(), problems)
	check(b, "old[]Conflict young[10.0.0.1]")

	// What may not be keeps nothing from others.
	b = newBalancers(t)
	b.add("old", had, func(s *v1alpha1.LoadBalancerSpec) { s.Group = "none" })
	b.add("young", v1alpha1.LoadBalancerStatus{})
	check(b, "old[]NoGroup young[10.0.0.1]")
	b.groups(b.group("edge", "blue"))
	check(b, "old[]NoGroup young[]NotAllowed")
	b.groups(b.group("edge", "red"))
	check(b, "old[]NoGroup young[10.0.0.1]")
}

// A LoadBalancer without a group gets the one with the least load, then with the fewest services; it
// stays there. Only groups that may and can forward it are asked.
func TestChoiceOfGroups(t *testing.T) {
	chosen := func(b *balancers, name string) string {
		b.pass()
		w := b.byName[pool.Service{Kind: pool.LoadBalancer, Namespace: "red", Name: name}]
		if w.chosen == nil {
			_, text := texts(w.problems[governing])
			return text
		}
		return w.chosen.Of.Name
	}
	load := func(b *balancers, of string, utilization, used float64) {
		b.read.staff[of].directors[0].Counts.Load = group.Load{Utilization: utilization, Used: used}
	}
	at := func(last int) func(*v1alpha1.LoadBalancerSpec) {
		return func(s *v1alpha1.LoadBalancerSpec) {
			s.Addresses = []v1alpha1.Address{v1alpha1.Address(fmt.Sprintf("10.0.0.%d", last))}
		}
	}
	check := func(b *balancers, name, want string) {
		t.Helper()
		if got := chosen(b, name); got != want {
			t.Errorf("%s is in %s, want %s", name, got, want)
		}
	}
	b := newBalancers(t)
	b.groups(b.group("one", "red"), b.group("two", "red"), b.group("others", "blue"))
	for i, want := range []string{"one", "two", "one", "two"} { // equal ones take turns
		name := fmt.Sprint("b", i)
		b.add(name, v1alpha1.LoadBalancerStatus{}, at(i+1))
		check(b, name, want)
	}
	load(b, "one", 0.32, 0.1)
	load(b, "two", 0.1, 0.33) // noise
	b.add("b4", v1alpha1.LoadBalancerStatus{}, at(5))
	check(b, "b4", "one")
	load(b, "one", 0.1, 0.5)
	b.add("b5", v1alpha1.LoadBalancerStatus{}, at(6))
	check(b, "b5", "two")
	load(b, "two", 0.9, 0)
	b.allUnsettled()
	check(b, "b5", "two") // it stays
	b.add("stays", v1alpha1.LoadBalancerStatus{Group: "two"}, at(7))
	check(b, "stays", "two") // an earlier process has chosen
	b.groupOfSets = func(string) string { return "two" }
	b.add("written", v1alpha1.LoadBalancerStatus{}, at(8))
	check(b, "written", "two") // and has only written the set
	b.groupOfSets = nil

	b.add("nat", v1alpha1.LoadBalancerStatus{}, func(s *v1alpha1.LoadBalancerSpec) {
		yes := true
		s.Addresses = []v1alpha1.Address{"2001:db8::1"}
		s.Listeners[0].Mode, s.Listeners[0].SNAT = "nat", &yes
	})
	if got := chosen(b, "nat"); !strings.Contains(got, "directors of DirectorGroup one have no IPv6 address") {
		t.Errorf("without addresses to send from it is in %s", got)
	}
	b.groups(b.group("two", "blue"))
	b.add("b9", v1alpha1.LoadBalancerStatus{}, at(9))
	if got := chosen(b, "b9"); !strings.Contains(got, "does not let namespace red use segment vlan:7") {
		t.Errorf("without a right it is in %s", got)
	}
	b.groups(b.group("three", "red"))
	b.read.staff = nil
	if got := chosen(b, "b9"); !strings.Contains(got, "has directors") {
		t.Errorf("without directors it is in %s", got)
	}
	b.groups(b.group("three", "red"))
	check(b, "b9", "three")
}

// Members' states are what directors that forward the LoadBalancer say.
func TestMembersStates(t *testing.T) {
	b := newBalancers(t)
	b.add("web", v1alpha1.LoadBalancerStatus{})
	b.pass()
	w := b.of[0]
	services, problems := w.balancer.Services(w.chosen.Options, w.addresses)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	name := services[0].Name
	says := func(node string, taken string, r group.ServiceReport) group.Candidate {
		return group.Candidate{Presence: group.Presence{Node: node, Taken: &group.Taken{Version: taken}}, Report: group.Report{Services: map[string]group.ServiceReport{name: r}}}
	}
	down := group.ServiceReport{Checked: true, Down: map[string]string{"a": "refused"}}
	for want, directors := range map[string][]group.Candidate{
		"up a=up/2":              {says("x", "5", group.ServiceReport{Checked: true}), says("y", "5", group.ServiceReport{Checked: true})},
		"error a=down/1 refused": {says("x", "5", down), says("y", "5", group.ServiceReport{Checked: true})},
		"up a=unchecked/1":       {says("x", "5", group.ServiceReport{})},
		"unknown a=unknown/1":    {says("x", "5", group.ServiceReport{Checked: true, Unknown: []string{"a"}})},
		"unknown a=unknown/0":    {says("x", "4", down)}, // it does not forward what is written
	} {
		o := outlook{balancer: w.balancer, services: services, directors: directors, compiled: &compiled{version: "5"}}
		o.look()
		l := o.listeners()[0]
		got := fmt.Sprintf("%s %s=%s/%d %s", l.State, l.Members[0].Name, l.Members[0].State, l.Members[0].Directors, l.Members[0].Reason)
		if got = strings.TrimSpace(got); got != want {
			t.Errorf("the listener is %s, want %s", got, want)
		}
	}
}

// Counts go on where the status has left them, whatever directors come, go and begin anew, and alone
// they are not written more often than once in countPace.
func TestCounts(t *testing.T) {
	b := newBalancers(t)
	b.add("web", v1alpha1.LoadBalancerStatus{})
	b.pass()
	w := b.of[0]
	services, _ := w.balancer.Services(w.chosen.Options, w.addresses)
	now := b.begun
	status := v1alpha1.LoadBalancerStatus{Listeners: []v1alpha1.LoadBalancerListenerStatus{{Name: "http"}}}
	c := &Controller{counts: map[string]*counted{}}
	count := func(when time.Time, packets map[string]uint64) int64 {
		o := outlook{balancer: w.balancer, services: services}
		for node, n := range packets {
			o.directors = append(o.directors, group.Candidate{Presence: group.Presence{Node: node}, Counts: group.Counts{Services: map[string]group.Count{services[0].Name: {n}}}})
		}
		before := status.DeepCopy().Listeners
		status.Listeners[0].Statistics = nil
		c.count(w, &o, &status, before, when)
		return status.Listeners[0].Statistics.Packets
	}
	for i, step := range []struct {
		after   time.Duration
		packets map[string]uint64
		want    int64
	}{
		{0, map[string]uint64{"x": 10, "y": 5}, 15},
		{time.Second, map[string]uint64{"x": 20, "y": 5}, 15}, // too early
		{countPace, map[string]uint64{"x": 20, "y": 5}, 25},
		{2 * countPace, map[string]uint64{"x": 3, "y": 6}, 29}, // x has begun anew
		{3 * countPace, map[string]uint64{"y": 7, "z": 100}, 130},
	} {
		if got := count(now.Add(step.after), step.packets); got != step.want {
			t.Errorf("step %d: %d packets, want %d", i, got, step.want)
		}
	}
	c.counts = map[string]*counted{} // another process
	if got := count(now.Add(4*countPace), map[string]uint64{"y": 8, "z": 101}); got != 130 {
		t.Errorf("another process begins with %d packets, want 130", got)
	}
	if got := count(now.Add(5*countPace), map[string]uint64{"y": 9, "z": 101}); got != 131 {
		t.Errorf("another process goes on with %d packets, want 131", got)
	}
}

// A spec that directors could not forward leaves what was forwarded, also what an earlier process has
// written; not where the group, the segment or the addresses are others.
func TestWrongSpecsChangeNothing(t *testing.T) {
	b := newBalancers(t)
	forwarded := func(w *wish) string {
		b.pass()
		b.unsettled[w] = true
		b.translate(translate.Options{}, nil, func(metav1.Object) map[string]string { return nil })
		var names []string
		for i := range w.made.services {
			names = append(names, fmt.Sprint(w.made.services[i].Name, " ", len(w.made.services[i].Backends)))
		}
		accepted, _, _ := w.accepted()
		return fmt.Sprint(names, " ", accepted)
	}
	edit := func(w *wish, change func(*v1alpha1.LoadBalancerSpec)) {
		changed := w.balancer.Of.DeepCopy()
		changed.Generation++
		change(&changed.Spec)
		read, problems := b.readBalancer(translate.LoadBalancerName(changed), changed)
		b.ask(wish{balancer: read}, read.Request(), problems)
	}
	twice := func(s *v1alpha1.LoadBalancerSpec) {
		s.Listeners[0].Members = []v1alpha1.LoadBalancerMember{{Name: "a", Address: "10.0.0.11"}, {Name: "b", Address: "10.0.0.11"}}
	}
	unread := func(s *v1alpha1.LoadBalancerSpec) { s.Listeners[0].Members[0].GeneveOptions = "x" }
	const good = "[loadbalancer/red/web/http/10.0.0.1 1]"
	w := b.add("web", v1alpha1.LoadBalancerStatus{})
	check := func(what, want string) {
		t.Helper()
		if got := forwarded(w); got != want {
			t.Errorf("%s: forwarded is %s, want %s", what, got, want)
		}
	}
	check("at first", good+" True")
	written := w.made.services
	edit(w, twice)
	check("two members of an address", good+" False")
	edit(w, unread)
	check("a member that cannot be read", good+" False")
	edit(w, func(s *v1alpha1.LoadBalancerSpec) { twice(s); s.Addresses = []v1alpha1.Address{"10.0.0.2"} })
	check("another address", "[] False")

	// Rights that are taken away meanwhile are: for what the directors forward, not for what the spec says now.
	groupWith := func(more ...v1alpha1.DirectorSegment) *translate.DirectorGroup {
		of := b.group("edge", "red").Of.DeepCopy()
		of.Spec.Segments = append(of.Spec.Segments, more...)
		read, err := translate.ReadDirectorGroup(of, translate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return read
	}
	both := groupWith(v1alpha1.DirectorSegment{ID: "vlan:8", Namespaces: []string{"red"}})
	elsewhere := func(s *v1alpha1.LoadBalancerSpec) { s.Listeners[0].Members[0].Segment = "vlan:8" }
	begin := func() {
		b = newBalancers(t)
		b.groups(both)
	}
	begin()
	w = b.add("web", v1alpha1.LoadBalancerStatus{}, elsewhere)
	check("a member in another segment", good+" True")
	inBoth := w.made.services
	edit(w, twice)
	check("a wrong spec of the VIP's segment alone", good+" False")
	b.groups(groupWith(v1alpha1.DirectorSegment{ID: "vlan:8", Namespaces: []string{"blue"}}))
	check("without the right to the other segment", "[] False")
	begin()
	w = b.add("web", v1alpha1.LoadBalancerStatus{}, elsewhere)
	check("before it is deleted", good+" True")
	w.leaves, w.balancer = b.begun, w.balancer.Leaving()
	check("deleted", good+" True")
	b.groups(groupWith())
	check("deleted, and without the right", "[] True")
	for name, change := range map[string]func(*v1alpha1.LoadBalancerSpec){"wrong": twice, "unread": unread} {
		for _, may := range []bool{true, false} {
			begin()
			want := good
			if !may {
				b.groups(groupWith())
				want = "[]"
			}
			b.written = func(string, string) []model.Service { return inBoth }
			w = b.add("web", v1alpha1.LoadBalancerStatus{}, change)
			check(fmt.Sprintf("the next process, %s, with the right: %v", name, may), want+" False")
		}
	}

	for name, change := range map[string]func(*v1alpha1.LoadBalancerSpec){"wrong": twice, "unread": unread} {
		b = newBalancers(t)
		b.written = func(string, string) []model.Service { return written }
		w = b.add("web", v1alpha1.LoadBalancerStatus{}, change)
		check("the next process, "+name, good+" False")
	}
}
