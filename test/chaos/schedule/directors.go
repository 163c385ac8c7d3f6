package schedule

import "time"

// directors returns the directors that are announced or not, and have rested.
func (m *maker) directors(announced bool) []int {
	var list []int
	for i, is := range m.group.Announced {
		if is == announced && m.now-m.touched[i] >= rest {
			list = append(list, i)
		}
	}
	return list
}

func (m *maker) announced() int {
	n := 0
	for _, is := range m.group.Announced {
		if is {
			n++
		}
	}
	return n
}

// leave returns a director that may leave; none if only two are announced, or only one of two.
func (m *maker) leave() []int {
	if m.announced() <= min(2, m.o.Directors-1) {
		return nil
	}
	return m.pick(m.directors(true), 1)
}

func (m *maker) mayChangeDirectors() bool {
	return len(m.directors(false)) > 0 || len(m.leave()) > 0
}

// changeDirectors makes one director come or go.
func (m *maker) changeDirectors() bool {
	return m.oneOf(m.addDirector, m.removeDirector, m.killDirector)
}

func (m *maker) addDirector() bool {
	return m.announce(DirectorAdded, m.pick(m.directors(false), 1), true)
}

func (m *maker) removeDirector() bool { return m.announce(DirectorRemoved, m.leave(), false) }

func (m *maker) killDirector() bool { return m.announce(DirectorKilled, m.leave(), false) }

func (m *maker) announce(kind Kind, directors []int, announced bool) bool {
	if len(directors) == 0 {
		return false
	}
	m.group.Announced[directors[0]] = announced
	m.add(Event{Kind: kind, Director: directors[0]})
	return true
}

// disturbDirector does anything to a director, including making it come or go.
func (m *maker) disturbDirector() bool {
	return m.oneOf(m.changeDirectors, m.again(DirectorCrashed), m.again(DirectorRestarted), m.goBlind, m.changeQueues, m.loseMember,
		m.upgradeDirector, m.upgradeAgent)
}

// again ends the process of a director, and the process starts again.
func (m *maker) again(kind Kind) func() bool {
	return func() bool {
		chosen := m.pick(m.directors(true), 1)
		if len(chosen) == 0 {
			return false
		}
		m.add(Event{Kind: kind, Director: chosen[0]})
		return true
	}
}

// goBlind lets one director lose sight of a backend for some seconds.
func (m *maker) goBlind() bool {
	chosen, seen := m.pick(m.directors(true), 1), m.pick(m.backends(m.stays, Active), 1)
	if m.blind || len(chosen) == 0 || len(seen) == 0 {
		return false
	}
	m.blind = true
	m.add(Event{Kind: DirectorBlind, Director: chosen[0], Backends: seen})
	lasts := time.Second + time.Duration(m.rng.Int64N(int64(longBlind-time.Second)))
	m.pending = append(m.pending, Event{At: m.now + lasts, Kind: DirectorSees, Director: chosen[0], Backends: seen})
	// The director does not leave before it sees again.
	m.touched[chosen[0]] = m.now + lasts
	return true
}

// MostQueues is how many queues a director's uplink has at most.
const MostQueues = 4

func (m *maker) changeQueues() bool {
	m.group.Queues = 1 + (m.group.Queues+m.rng.IntN(MostQueues-1))%MostQueues
	m.add(Event{Kind: QueuesChanged})
	return true
}

// loseMember removes one member of the store for some seconds: the others go on.
func (m *maker) loseMember() bool {
	if m.lost || m.o.Members < 3 {
		return false
	}
	m.lost = true
	e := Event{Kind: StoreMemberLost, Member: m.rng.IntN(m.o.Members)}
	m.add(e)
	lasts := time.Second + time.Duration(m.rng.Int64N(int64(longLost-time.Second)))
	m.pending = append(m.pending, Event{At: m.now + lasts, Kind: StoreMemberBack, Member: e.Member})
	return true
}
