package answers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// Result is what a comparison found.
type Result struct {
	Packets       int
	Disagreements int
	SideEffects   int // readings of all maps that questions had changed
	Placed        int // packets whose backend was worked out in Go, too
	Reasons       map[string]int
	Examples      []string // a few of what was wrong
}

// The number of questions between two readings of all maps, and of packets until the next such
// questions.
const (
	questions    = 20
	readingEvery = 500
)

// mostExamples is how many examples are kept.
const mostExamples = 5

func (r *Result) disagree(format string, args ...any) {
	r.Disagreements++
	if len(r.Examples) < mostExamples {
		r.Examples = append(r.Examples, fmt.Sprintf(format, args...))
	}
}

// Compare sends packetsEach random packets to each of the random configurations. It is repeatable
// except for the kernel's random numbers and the clock.
func (l *Lab) Compare(ctx context.Context, seed uint64, configurations, packetsEach int, progress func(done int)) (Result, error) {
	// This does what a NIC does: a flow's packets come to one CPU, here that of the sender.
	free, err := netlab.OnCPU(0)
	if err != nil {
		return Result{}, err
	}
	defer free()
	result := Result{Reasons: map[string]int{}}
	r := rand.New(rand.NewPCG(seed, 7))
	numbers, err := l.reasons(ctx)
	if err != nil {
		return result, err
	}
	p := &packets{r: r, lab: l}
	for number := range configurations {
		list := randomServices(r, number)
		if len(list) == 0 {
			continue
		}
		if err := l.configure(ctx, list); err != nil {
			return result, fmt.Errorf("configuration %d: %w", number, err)
		}
		p.services = list
		table, _ := engine.Plan(l.configuration(list), nil, nil)
		for range packetsEach {
			if ctx.Err() != nil {
				return result, ctx.Err()
			}
			if result.Packets%readingEvery == 0 {
				if err := l.askOnly(ctx, p, &result); err != nil {
					return result, err
				}
			}
			if err := l.compare(ctx, p, &table, numbers, &result); err != nil {
				return result, err
			}
		}
		progress(result.Packets)
	}
	return result, nil
}

// reasons are the numbers of reasons, by their names.
func (l *Lab) reasons(ctx context.Context) (map[string]int, error) {
	status, err := l.client.Status(ctx)
	if err != nil {
		return nil, err
	}
	numbers := map[string]int{}
	for i, reason := range status.Reasons {
		numbers[reason.Name] = i
	}
	return numbers, nil
}

func (l *Lab) explain(ctx context.Context, s *sent) (model.Explanation, error) {
	return l.client.Explain(ctx, model.Question{Interface: l.sides[s.side].name, Frame: s.frame})
}

// askOnly asks about packets that are not sent, and looks whether that changed anything. The
// director itself changes its maps now and then, when it sweeps them: only what changes every time
// comes from the questions.
func (l *Lab) askOnly(ctx context.Context, p *packets, result *Result) error {
	const tries = 3
	var changed []string
	for range tries {
		was, err := l.state.dump()
		if err != nil {
			return err
		}
		for range questions {
			next := p.next()
			if _, err := l.explain(ctx, &next); err != nil {
				return fmt.Errorf("ask about %x: %w", next.frame, err)
			}
		}
		is, err := l.state.dump()
		if err != nil {
			return err
		}
		if changed = differ(was, is); len(changed) == 0 {
			return nil
		}
	}
	result.SideEffects++
	if len(result.Examples) < mostExamples {
		result.Examples = append(result.Examples, fmt.Sprintf("%d questions changed %s", questions, strings.Join(changed, ", ")))
	}
	return nil
}

// compare asks about a packet, sends it, and looks what became of it.
func (l *Lab) compare(ctx context.Context, p *packets, table *model.Table, numbers map[string]int, result *Result) error {
	next := p.next()
	e, err := l.explain(ctx, &next)
	if err != nil {
		return fmt.Errorf("ask about %x: %w", next.frame, err)
	}
	result.Packets++
	result.Reasons[e.Reason]++
	number, known := numbers[e.Reason]
	if !known {
		return fmt.Errorf("the director counts no %s", e.Reason)
	}
	before, err := l.state.counted(number)
	if err != nil {
		return err
	}
	if err := l.sides[next.side].send(next.frame); err != nil {
		return err
	}
	left := slices.IndexFunc(l.sides[:], func(w *wire) bool { return w.name == e.Leaves })
	if e.Outcome == model.OutcomeForward || e.Outcome == model.OutcomeAnswer {
		if left < 0 {
			result.disagree("%s leaves by %q, explained of %x", e.Reason, e.Leaves, next.frame)
			left = next.side
		}
		got, err := l.sides[left].awaitFrame(ctx)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, e.Out) {
			result.disagree("%s: of %x\nleft      %x\nexplained %x", e.Reason, next.frame, got, []byte(e.Out))
		}
		if e.Reason == "forward_nat" && got != nil {
			p.got(got)
		}
	}
	if err := l.awaitCounted(ctx, number, before, e.Reason, &next, result); err != nil {
		return err
	}
	for _, w := range l.sides {
		for frame, err := w.receive(); frame != nil || err != nil; frame, err = w.receive() {
			if err != nil {
				return err
			}
			result.disagree("%s: of %x\nbesides left by %s %x", e.Reason, next.frame, w.name, frame)
		}
	}
	if next.fresh != nil {
		result.Placed++
		if !mayBeOf(table, &next, &e) {
			result.disagree("%s goes to %+v, which is not where the ring has it: %x", e.Reason, e.Backend, next.frame)
		}
	}
	return nil
}

// awaitCounted waits until the packet is counted under the reason that was explained.
func (l *Lab) awaitCounted(ctx context.Context, number int, before uint64, reason string, s *sent, result *Result) error {
	done, err := poll(ctx, func() (bool, error) {
		now, err := l.state.counted(number)
		return now > before, err
	})
	if err == nil && !done {
		result.disagree("not counted under %s, as explained: %x", reason, s.frame)
	}
	return err
}

// mayBeOf says whether the ring that Go works out places the packet where the director does: on its
// slot's first candidate that is up, or, with p2c and a packet that opens a connection, on the
// owner's backup; or nowhere, if its source is in none of the service's ranges. Full NAT's handling
// of a flow whose beginning it has not seen is no placement.
func mayBeOf(table *model.Table, s *sent, e *model.Explanation) bool {
	at := slices.IndexFunc(table.Services, func(t model.TableService) bool { return t.Name == s.of.Name })
	if at < 0 {
		return false
	}
	t := &table.Services[at]
	var want []netip.AddrPort
	if len(t.Ring.Slots) > 0 {
		row := t.Ring.Row(t.Ring.SlotOf(s.fresh.Hash(t.Salt, t.Affinity)))
		for i, c := range row {
			if c == model.NoBackend || !t.Backends[c].State.Alive() {
				continue
			}
			want = append(want, netip.AddrPortFrom(t.Backends[c].Address, t.Backends[c].Port))
			if i > 0 || t.Policy != model.P2C || !s.opens {
				break
			}
		}
	}
	within := len(t.SourceRanges) == 0 || slices.ContainsFunc(t.SourceRanges, func(p netip.Prefix) bool { return p.Contains(s.fresh.Source) })
	switch {
	case !within || e.Reason == "drop_source_range":
		return !within && e.Backend == nil && e.Reason == "drop_source_range"
	case slices.Contains([]string{"drop_snat_full", "drop_snat_clash", "drop_snat_unknown"}, e.Reason):
		return s.of.SNAT
	case len(want) == 0:
		return e.Backend == nil && e.Reason == "drop_no_backend"
	}
	return e.Backend != nil && slices.Contains(want, e.Backend.Backend)
}

// poll asks until the condition holds, or for too long.
func poll(ctx context.Context, is func() (bool, error)) (bool, error) {
	for deadline := time.Now().Add(patience); ; {
		done, err := is()
		if done || err != nil || time.Now().After(deadline) || ctx.Err() != nil {
			return done, errors.Join(err, ctx.Err())
		}
	}
}
