package maglev

import "slices"

// refillMembers is the largest number of members for which a fill without each is cheaper than a
// replay (BenchmarkBackups).
const refillMembers = 32

// refill returns owners and backups as replay does, from the ring without each
// member.
func (f *fill) refill() (owners, backups []uint32) {
	owners = f.owners(f.run(nil))
	backups = make([]uint32, f.size)
	for gone := range f.members {
		rest := f.without(gone)
		for slot, owner := range owners {
			if owner == uint32(gone) {
				backups[slot] = rest[slot]
			}
		}
	}
	return owners, backups
}

// without returns the owners of the slots in the ring without a member.
func (f *fill) without(gone int) []uint32 {
	if len(f.members) == 1 {
		return slices.Repeat([]uint32{None}, int(f.size))
	}
	rest := &fill{size: f.size, members: slices.Delete(slices.Clone(f.members), gone, gone+1)}
	rest.turns = rest.order()
	owners := rest.owners(rest.run(nil))
	for slot, m := range owners {
		if m >= uint32(gone) {
			owners[slot]++
		}
	}
	return owners
}
