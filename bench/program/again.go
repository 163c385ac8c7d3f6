package program

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"weir.io/weir/bench/inside"
)

//go:generate ../../bpf/generate -no-global-types again ../bpf/again.bpf.c

// director is the name of the program that is measured, and of the function that stands
// for it in bench/bpf/again.bpf.c.
const director = "director"

// again calls a director on one packet repeatedly. Without a director it has the programs of a [Bench],
// too.
type again struct{ collection *ebpf.Collection }

// calling is the name of the program that calls the director.
const calling = "again"

func (a *again) named(name string) program { return program{a.collection.Programs[name]} }

// newAgain loads the program that calls the director in the compiled object, with the maps of a
// running director. The director is the program of this name, entry. Without an object it calls a function that does nothing.
func newAgain(object []byte, entry string, maps inside.Maps) (*again, error) {
	spec, err := loadAgain()
	if err != nil {
		return nil, fmt.Errorf("read what calls the director: %w", err)
	}
	delete(spec.Programs, director) // it is part of the calling program
	if object != nil {
		spec.Programs = map[string]*ebpf.ProgramSpec{calling: spec.Programs[calling]}
		if err := putInto(spec, object, entry); err != nil {
			return nil, err
		}
	}
	collection, err := loadWith(spec, maps)
	if err != nil {
		return nil, fmt.Errorf("load the director with what calls it: %w", err)
	}
	return &again{collection}, nil
}

// putInto replaces the function that stands for the director, which is the last one, by the
// object's. It is called as it is: if it were compiled with its caller it would become part of it,
// with other registers and another code layout.
func putInto(spec *ebpf.CollectionSpec, object []byte, entry string) error {
	from, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return fmt.Errorf("read the director's object: %w", err)
	}
	if from.Programs[entry] == nil {
		return fmt.Errorf("read the director's object: there is no program %q", entry)
	}
	caller := spec.Programs[calling]
	at := slices.IndexFunc(caller.Instructions, func(i asm.Instruction) bool { return i.Symbol() == director })
	if at < 0 {
		return errors.New("what calls the director has no function in its place")
	}
	called := slices.Clone(from.Programs[entry].Instructions)
	called[0] = called[0].WithSymbol(director)
	caller.Instructions = slices.Concat(caller.Instructions[:at], called)
	for name, m := range from.Maps {
		if spec.Maps[name] != nil {
			return fmt.Errorf("the director and what calls it both have a map %s", name)
		}
		spec.Maps[name] = m
	}
	return nil
}

// settings say what one run does.
type settings struct {
	times  uint32 // how often the director is called
	tunnel uint32 // 1: the packet becomes longer, ...
	growth uint32 // ... by that many bytes
	macs   uint32 // 1: only the MAC addresses change
	option uint32 // where redirection fills something into the frame; 0: nowhere
}

// set prepares the program for a packet.
func (a *again) set(to settings, frame []byte) error {
	variables := a.collection.Variables
	return errors.Join(variables["again_times"].Set(to.times), variables["again_tunnel"].Set(to.tunnel),
		variables["again_growth"].Set(to.growth), variables["again_option"].Set(to.option), variables["again_macs"].Set(to.macs),
		variables["again_front"].Set(frontOf(frame)))
}
