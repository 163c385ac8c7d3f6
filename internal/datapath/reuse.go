package datapath

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// The kernel takes seconds to verify the program. A process that starts again finds it loaded, and
// until it has it, forwards what the group wanted before. So it takes over a program that was built
// from the same bytes.

// buildPrefix begins the second name under which the director's program is pinned: the rest of that
// name says what it was built from.
const buildPrefix = "build-"

// programNames are the programs that one process loads together.
var programNames = []string{directorProgDirector, natTCProgUndoNat, natTCProgTakeReply, natTCProgTakeBareReply, directorProgTakeTellings}

// buildName names what the programs are built from, besides the maps.
func buildName(o Options, spec *ebpf.CollectionSpec) string {
	if o.differs != nil {
		return "" // it cannot be told how
	}
	hash := sha256.New()
	hash.Write(_DirectorBytes)
	hash.Write(_NatTCBytes)
	if m := spec.Maps[constants]; m != nil {
		for _, content := range m.Contents {
			if bytes, ok := content.Value.([]byte); ok {
				hash.Write(bytes)
			}
		}
	}
	return buildPrefix + hex.EncodeToString(hash.Sum(nil)[:16])
}

// loaded opens the programs that were built from the same bytes for the same maps, if they are
// attached; nil: there are none.
func (p *pins) loaded(attached map[ebpf.ProgramID]bool) map[string]*ebpf.Program {
	if p.build == "" || !p.adopted {
		return nil
	}
	for _, dir := range []string{p.programsDir() + beside, p.programsDir()} {
		id, err := pinnedProgramID(filepath.Join(dir, p.build))
		if err != nil || !attached[id] {
			continue
		}
		programs := map[string]*ebpf.Program{}
		for _, name := range programNames {
			program, err := ebpf.LoadPinnedProgram(filepath.Join(dir, name), nil)
			if err != nil {
				closeAll(programs)
				break
			}
			programs[name] = program
		}
		if len(programs) == len(programNames) {
			return programs
		}
	}
	return nil
}

func closeAll(programs map[string]*ebpf.Program) {
	for name, program := range programs {
		program.Close()
		delete(programs, name)
	}
}

// pinBuild says what the program in a directory was built from.
func (k *kernel) pinBuild(dir string) error {
	if k.build == "" {
		return nil
	}
	return pinClone(k.program, filepath.Join(dir, k.build))
}
