package tune

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// Result is what became of a change.
type Result string

// The results.
const (
	Would    Result = ""         // nothing was tried
	Set      Result = "set"      // it is so now
	Refused  Result = "refused"  // it is not
	Restored Result = "restored" // it is again what it was
	Kept     Result = "kept"     // somebody else has changed it since
	Gone     Result = "gone"     // it is not there any more
)

// Change is a setting's way from one value to another.
type Change struct {
	What    string `json:"what"`
	Now     string `json:"now"` // before it
	Then    string `json:"then"`
	Command string `json:"command,omitempty"` // that does the same
	Result  Result `json:"result,omitempty"`
	Why     string `json:"why,omitempty"`
}

// String is the change in one line, without the command.
func (c *Change) String() string {
	text := c.What
	if c.Then != "" {
		text += ": " + c.Now + " -> " + c.Then
	}
	if c.Result != Would {
		text += ": " + string(c.Result)
	}
	if c.Why != "" {
		text += ": " + c.Why
	}
	return text
}

func changeOf(s *Setting) Change {
	return Change{What: s.Name(), Now: s.Show(s.Now), Then: s.Show(s.Want), Command: s.Command(s.Want)}
}

// AmissIn are the settings that want another value, in the order in which they are set.
func AmissIn(parts []Part) (amiss []Setting) {
	for _, p := range parts {
		for _, s := range p.Settings {
			if s.Now != s.Want {
				amiss = append(amiss, s)
			}
		}
	}
	slices.SortStableFunc(amiss, func(a, b Setting) int { return slices.Index(stages, a.Kind) - slices.Index(stages, b.Kind) })
	return amiss
}

// Plan returns the changes that Apply would make now. Some settings exist only after others have changed, as
// the interrupts of queues that are to come.
func Plan(parts []Part) (changes []Change) {
	for _, s := range AmissIn(parts) {
		changes = append(changes, changeOf(&s))
	}
	return changes
}

// Apply sets what the survey finds amiss, and goes on past what is refused. What there was is in the record
// before it is changed. An error says what could not be done at all: interfaces that are not there, or the
// record, without which nothing is changed.
func (h *Host) Apply(names []string, o Options, store Store) (changes []Change, err error) {
	record, _, err := store.load(h.boot())
	if err != nil {
		return nil, err
	}
	if record == nil {
		record = &Record{Format: recordFormat, Boot: h.boot()}
	}
	record.Settled = false
	a := application{host: h, store: store, record: record, noted: map[string]bool{}, tried: map[string]bool{}}
	for {
		select {
		case <-h.Done:
			a.stopped = ErrTold
		default:
		}
		parts, missing := h.Survey(names, o)
		todo := slices.DeleteFunc(AmissIn(parts), func(s Setting) bool { return a.tried[s.Name()] })
		if len(todo) == 0 || a.stopped != nil {
			var err error
			if a.stopped == nil {
				err = a.again(parts)
			}
			a.settle(names, o)
			record.prune()
			record.Settled = true
			return a.changes, errors.Join(missing, err, a.stopped, store.save(a.record))
		}
		a.noteOthers(parts, todo)
		if err := a.step(todo); err != nil {
			return a.changes, errors.Join(missing, err)
		}
	}
}

// application is one run of Apply.
type application struct {
	host    *Host
	store   Store
	record  *Record
	noted   map[string]bool
	tried   map[string]bool
	changes []Change
	stopped error // why nothing else is changed: of a bond, another member carries the packets
}

// noteOthers records what drivers change with the number of queues or their rings: what becomes of it is found
// out in the end.
func (a *application) noteOthers(parts []Part, todo []Setting) {
	for _, p := range parts {
		begins := func(s Setting) bool { return s.Interface == p.Interface && s.Kind.begins() }
		if p.Interface == "" || !slices.ContainsFunc(todo, begins) {
			continue
		}
		for _, s := range p.Settings {
			// What is recorded and has another value by now is somebody else's.
			if known := a.record.find(s.Name()); s.Now == s.Want && (known == nil || known.Set == s.Now) {
				a.noted[s.Name()] = true
				a.record.note(&s)
			}
		}
	}
}

// step sets what does not depend on the rest. All of it is recorded: a driver may reset the rest with it.
func (a *application) step(todo []Setting) error {
	for i := range todo {
		a.noted[todo[i].Name()] = true
		a.record.note(&todo[i])
	}
	if err := a.store.save(a.record); err != nil {
		return err
	}
	for i := range todo {
		if s := &todo[i]; s.Kind == todo[0].Kind && a.stopped == nil {
			a.changes = append(a.changes, a.set(s))
		}
	}
	return nil
}

// set sets one value; what the host has afterwards counts.
func (a *application) set(s *Setting) Change {
	a.tried[s.Name()] = true
	c := changeOf(s)
	after, err := s.put(s.Want)
	a.stopped = c.end(Set, s.Want, after, err)
	if after != "" {
		a.record.noteSet(s.Name(), after)
	}
	return c
}

// end says what became of a change to a value: it is done, or refused. The error says why no other one is to
// be made.
func (c *Change) end(done Result, want, after string, err error) (stopped error) {
	c.Result, c.Why = done, ""
	if err == nil {
		return nil
	}
	c.Why = err.Error()
	if errors.Is(err, ErrNoPackets) {
		stopped = err
	}
	if stopped == nil || after != want {
		c.Result = Refused
	}
	return stopped
}

// put writes a value and reads it back; empty: it cannot be read. Where packets passed before, they do again
// then, or the error is ErrNoPackets.
func (s *Setting) put(value string) (after string, err error) {
	passed := s.link != nil && s.link.mayPause() && s.link.passes()
	wrote := s.write(value)
	if passed {
		if err := s.link.await(); err != nil {
			after, _ = s.read() // the link is worse
			return after, errors.Join(wrote, err)
		}
	}
	after, err = s.read()
	switch {
	case err != nil:
		return "", errors.Join(wrote, fmt.Errorf("it cannot be read back: %w", err))
	case after == value:
		return after, nil
	case wrote != nil:
		return after, wrote
	}
	return after, fmt.Errorf("it was accepted, and is %s", s.Show(after))
}

// again tries once more what was refused before something else was set, on which it may have depended: a NIC
// does not give up queues that RSS uses.
func (a *application) again(parts []Part) error {
	for _, s := range AmissIn(parts) {
		at := slices.IndexFunc(a.changes, func(c Change) bool { return c.What == s.Name() && c.Result == Refused })
		if at < 0 || !slices.ContainsFunc(a.changes[at+1:], func(c Change) bool { return c.Result == Set }) {
			continue
		}
		a.record.note(&s)
		if err := a.store.save(a.record); err != nil {
			return err
		}
		if a.changes[at] = a.set(&s); a.stopped != nil {
			break
		}
	}
	return nil
}

// settle records what has become of settings that were recorded and not set, because a driver had set them
// with others.
func (a *application) settle(names []string, o Options) {
	parts, _ := a.host.Survey(names, o) // what is missing was told
	now := map[string]string{}
	for _, p := range parts {
		for _, s := range p.Settings {
			now[s.Name()] = s.Now
		}
	}
	for name := range a.noted {
		if a.tried[name] {
			continue
		}
		if value, is := now[name]; is {
			a.record.noteSet(name, value)
		} else {
			a.record.drop(name)
		}
	}
}

// Undo restores what the record has, where it is still as it was set, and removes the record. What is refused
// stays in it. Nothing is recorded: before says whether that is because the host has booted since.
func (h *Host) Undo(store Store) (changes []Change, before bool, err error) {
	record, before, err := store.load(h.boot())
	if err != nil {
		return nil, false, err
	}
	if record == nil {
		return nil, before, store.remove()
	}
	there := h.recorded(record)
	elsewhere, anew := map[string]bool{}, map[string]bool{} // by interface
	for _, r := range record.Settings {
		elsewhere[r.Interface] = elsewhere[r.Interface] || h.isElsewhere(r.Identity)
		anew[r.Interface] = anew[r.Interface] || r.Kind.begins() && r.Was != r.Set
	}
	// What somebody has changed is told from what is there now: drivers change settings with others.
	var restored []restoration
	for i, r := range record.Settings {
		if elsewhere[r.Interface] {
			changes = append(changes, Change{What: r.Name, Result: Refused, Why: "it is in another network namespace: undo it there"})
			continue
		}
		// Where tune was killed it has not noted what the driver has set when it began anew.
		if s := there[r.Name]; s != nil && !record.Settled && anew[r.Interface] && !r.Kind.begins() && r.Was == r.Set && s.Identity == r.Identity {
			r.Set = s.Now
			record.Settings[i].Set = s.Now
		}
		changes = append(changes, restorationOf(there[r.Name], r))
		if changes[i].Result == Restored {
			restored = append(restored, restoration{there[r.Name], r, i})
		}
	}
	// What was set last goes first: interrupts go with their queues. What is refused then may depend on what
	// came later, and what is restored may have changed with that.
	slices.SortStableFunc(restored, func(a, b restoration) int { return b.stage() - a.stage() })
	var stopped error
	for round := range 3 {
		for _, r := range restored {
			if c := &changes[r.at]; stopped == nil {
				stopped = r.put(c, round)
			} else if now, err := r.read(); err != nil || now != r.recorded.Was {
				c.Result, c.Why = Refused, stopped.Error()
			}
		}
		slices.SortStableFunc(restored, func(a, b restoration) int { return a.stage() - b.stage() })
	}
	left := &Record{Format: record.Format, Boot: record.Boot, Settled: record.Settled}
	for i, c := range changes {
		if c.Result == Refused {
			left.Settings = append(left.Settings, record.Settings[i])
		}
	}
	// What tune has not changed is told of only if it is not as it was.
	at := -1
	changes = slices.DeleteFunc(changes, func(c Change) bool {
		at++
		return record.Settings[at].Was == record.Settings[at].Set && c.Result != Refused && c.Result != Kept
	})
	return changes, false, errors.Join(stopped, store.save(left))
}

// recorded finds the settings of a record on the host, by name.
func (h *Host) recorded(r *Record) map[string]*Setting {
	var names []string
	for _, s := range r.Settings {
		if s.Interface != "" && !slices.Contains(names, s.Interface) {
			names = append(names, s.Interface)
		}
	}
	parts, _ := h.Survey(names, Options{}) // settings of interfaces that are not there are named by their names
	there := map[string]*Setting{}
	for _, p := range parts {
		for _, s := range p.Settings {
			there[s.Name()] = &s
		}
	}
	return there
}

// restorationOf says what is to become of one setting: restored, or kept, or it is gone.
func restorationOf(s *Setting, r Recorded) Change {
	if s == nil || s.Identity != r.Identity {
		return Change{What: r.Name, Result: Gone, Why: "it is not there any more, or another one has its name"}
	}
	c := Change{What: r.Name, Now: s.Show(r.Set), Then: s.Show(r.Was), Command: s.Command(r.Was), Result: Restored}
	if s.Now != r.Set && s.Now != r.Was {
		c.Now, c.Then, c.Result = s.Show(s.Now), "", Kept
		c.Why = fmt.Sprintf("it is %s, which somebody has set since; weir tune had set %s, and before that it was %s", c.Now, s.Show(r.Set), s.Show(r.Was))
	}
	return c
}

// restoration is a setting that is to be restored.
type restoration struct {
	*Setting
	recorded Recorded
	at       int // in the changes
}

func (r restoration) stage() int { return slices.Index(stages, r.Kind) }

// put restores it, unless it is as it was, and says how that went. The error says why nothing else is to be
// restored.
func (r restoration) put(c *Change, round int) (stopped error) {
	now, err := r.read()
	if errors.Is(err, fs.ErrNotExist) && round > 0 {
		return nil // it has gone with what was restored meanwhile
	}
	if err == nil && now != r.recorded.Was {
		now, err = r.Setting.put(r.recorded.Was)
	}
	return c.end(Restored, r.recorded.Was, now, err)
}
