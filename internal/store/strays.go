package store

import (
	"os"
	"path/filepath"
	"strings"
)

// Strays returns, in order, what is in the directory under a name like that of a set, and is none
// of this process's sets: somebody else has put it there.
func (f *File) Strays() (paths []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries, _ := os.ReadDir(f.dir) // a missing directory is reported elsewhere
	for _, entry := range entries {
		name := entry.Name()
		_, known := f.files[name]
		if strings.HasSuffix(name, suffix) && !strings.HasPrefix(name, temporary) && !known {
			paths = append(paths, filepath.Join(f.dir, name))
		}
	}
	return paths
}
