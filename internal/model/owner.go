package model

import "fmt"

// OwnerLimits bound how much of a director's limits one owner's set may take. Zero is no bound.
type OwnerLimits struct {
	Owner        string `json:"owner"`
	Services     uint32 `json:"services,omitempty"`
	Backends     uint32 `json:"backends,omitempty"` // counted once per service
	RingMemory   uint64 `json:"ring-memory,omitempty"`
	SourceRanges uint32 `json:"source-ranges,omitempty"`
}

// Taken is how much of a director's limits services take.
type Taken struct{ Services, Backends, RingMemory, SourceRanges uint64 }

// TakenBy counts what services take.
func TakenBy(services []Service) (t Taken) {
	t.Services, t.RingMemory = uint64(len(services)), Config{Services: services}.RingMemory()
	for i := range services {
		t.Backends += uint64(len(services[i].Backends))
		t.SourceRanges += uint64(len(services[i].SourceRanges))
	}
	return t
}

// Of returns how much is taken of the limit of this name, as director.limits has it.
func (t Taken) Of(limit string) uint64 {
	return map[string]uint64{"services": t.Services, "backends": t.Backends, "ring-memory": t.RingMemory, "source-ranges": t.SourceRanges}[limit]
}

// Refuse says how an owner's services exceed the limits of its set, or nothing.
func (l OwnerLimits) Refuse(services []Service) string {
	taken := TakenBy(services)
	for _, one := range []struct {
		name string
		most uint64
	}{{"services", uint64(l.Services)}, {"backends", uint64(l.Backends)}, {"ring-memory", l.RingMemory}, {"source-ranges", uint64(l.SourceRanges)}} {
		if got := taken.Of(one.name); one.most > 0 && got > one.most {
			return fmt.Sprintf("owner %q may have %d %s by director.owners, and this set has %d", l.Owner, one.most, one.name, got)
		}
	}
	return ""
}

// owners checks the owners whose sets have limits.
func (v *validation) owners() {
	first := map[string]int{}
	for i, o := range v.config.Director.Owners {
		path := fmt.Sprintf("director.owners[%d].owner", i)
		if err := CheckOwner(o.Owner); err != nil {
			v.errs.add(path, "%v", err)
		}
		if at, dup := first[o.Owner]; dup {
			v.errs.addWithOther(path, fmt.Sprintf("director.owners[%d].owner", at), "%q is already that of director.owners[%d]", o.Owner, at)
			continue
		}
		first[o.Owner] = i
	}
}
