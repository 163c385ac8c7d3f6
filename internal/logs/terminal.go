package logs

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// IsTerminal says whether a person may be reading what is written to w.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
