package schedule

import (
	"slices"
	"time"
)

// Version is the version of weir that a director or an agent runs.
type Version int

// The versions. All except the first differ from the measured one.
const (
	This     Version = iota
	SameABI          // with the same programs and maps
	OtherABI         // with other maps
	Versions         // how many there are
)

// String names the version in the words of events.
func (v Version) String() string {
	return [...]string{"to this version", "to a version with the same ABI", "to a version with another ABI"}[v]
}

// other returns a version that is not this one.
func (m *maker) other() Version { return SameABI + Version(m.rng.IntN(int(Versions-SameABI))) }

// longOther is how long a director or an agent runs another version at most.
const longOther = 8 * time.Second

// backAfter draws how long it runs another version.
func (m *maker) backAfter() time.Duration {
	return rest + time.Duration(m.rng.Int64N(int64(longOther-rest)))
}

// mayUpgrade reports whether there is time left to go back.
func (m *maker) mayUpgrade() bool { return m.now+longOther < m.o.Duration }

// upgradeDirector replaces a director's process with another version, and some seconds later with
// this version. A director that has gone by then comes back as this version.
func (m *maker) upgradeDirector() bool {
	chosen := m.pick(slices.DeleteFunc(m.directors(true), func(i int) bool { return m.group.DirectorVersions[i] != This }), 1)
	if len(chosen) == 0 || !m.mayUpgrade() {
		return false
	}
	i := chosen[0]
	m.group.DirectorVersions[i] = m.other()
	m.add(Event{Kind: DirectorUpgraded, Director: i})
	m.pending = append(m.pending, Event{At: m.now + m.backAfter(), Kind: DirectorUpgraded, Director: i})
	return true
}

// upgradeAgent does the same with the agent of a backend that stays.
func (m *maker) upgradeAgent() bool {
	chosen := m.pick(slices.DeleteFunc(m.backends(m.stays, Active, Draining), func(i int) bool { return m.group.AgentVersions[i] != This }), 1)
	if len(chosen) == 0 || !m.mayUpgrade() {
		return false
	}
	i := chosen[0]
	m.group.AgentVersions[i] = m.other()
	m.add(Event{Kind: AgentUpgraded, Backends: []int{i}})
	m.pending = append(m.pending, Event{At: m.now + m.backAfter(), Kind: AgentUpgraded, Backends: []int{i}})
	return true
}

// downgrade applies the second half of an upgrade to the group. It reports whether a process is
// replaced.
func (m *maker) downgrade(e Event) bool {
	if e.Kind == AgentUpgraded {
		m.group.AgentVersions[e.Backends[0]] = This
		return true
	}
	m.group.DirectorVersions[e.Director] = This
	return m.group.Announced[e.Director]
}
