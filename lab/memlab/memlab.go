// Package memlab bounds the memory that reading takes, in tests and fuzz targets: a sender must not
// choose how much memory it takes to read its input.
package memlab

import "runtime"

// T is the part of [testing.TB] that a bound needs.
type T interface {
	Helper()
	Errorf(format string, args ...any)
}

// Bound is what may be allocated to read something: for each of its bytes, and whatever its length.
type Bound struct{ PerByte, AtLeast int }

// Check does something that reads length bytes, and fails the test if it allocates more.
func (b Bound) Check(t T, length int, do func()) {
	t.Helper()
	if took, most := Allocated(do), b.AtLeast+b.PerByte*length; took > most {
		t.Errorf("%d bytes take %d to read, more than %d", length, took, most)
	}
}

// Allocated returns how many bytes a function allocates, even if most become garbage at once, plus
// what the rest of the process allocates meanwhile: a bound leaves a megabyte for that.
func Allocated(do func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}
