// Package memlab bounds what reading takes, in tests and fuzz targets: whoever can have something
// read must not choose how much memory that is.
package memlab

import "runtime"

// T is what a bound needs of a test: [testing.TB] has it.
type T interface {
	Helper()
	Errorf(format string, args ...any)
}

// Bound is what may be allocated to read something: for each of its bytes, and whatever its length.
type Bound struct{ PerByte, AtLeast int }

// Check does something that reads so many bytes, and fails the test if it takes more.
func (b Bound) Check(t T, length int, do func()) {
	t.Helper()
	if took, most := Allocated(do), b.AtLeast+b.PerByte*length; took > most {
		t.Errorf("%d bytes take %d to read, more than %d", length, took, most)
	}
}

// Allocated returns how many bytes a function allocates, of which most may be garbage at once, and
// the rest of the process meanwhile: a bound leaves that a megabyte.
func Allocated(do func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}
