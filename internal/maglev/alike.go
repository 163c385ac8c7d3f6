package maglev

// layer is a generation laid over the slots of the table.
type layer struct {
	Generation
	// border says that the layer is the other half of the one before it: the owners beyond the
	// border, in slots that lie on a border.
	border bool
	slots  int // of the generation's own ring
	number int // of the generation in the log
}

// tableSize is how many slots the rows of a log have, if they name what is in other logs, too: a slot is a range of hashes
// (hash * size >> 32), so a whole multiple of a ring's slots divides that ring
// and moves nothing in it: slot s becomes slots k s to k s + k - 1. The size is that
// multiple of the newest ring's which is not below any other's, and a slot then
// lies in at most two of an older ring. 0: the log has no slots.
func tableSize(log []Generation, others []Tier) int {
	newest, most := 0, 0
	for _, g := range log {
		if newest == 0 {
			newest = len(g.Owners)
		}
		most = max(most, len(g.Owners))
	}
	for _, o := range others {
		for _, g := range o.Log {
			most = max(most, len(g.Owners))
		}
	}
	if newest == 0 {
		return 0
	}
	return (most + newest - 1) / newest * newest
}

// layersOf lays a log's rings over so many slots. Generations without slots make no layer.
func layersOf(log []Generation, size int) []layer {
	layers := make([]layer, 0, len(log))
	for number, g := range log {
		if len(g.Owners) > 0 {
			layers = appendLayers(layers, g, number, size)
		}
	}
	return layers
}

func appendLayers(layers []layer, g Generation, number, size int) []layer {
	if len(g.Owners) == size {
		return append(layers, layer{Generation: g, slots: size, number: number})
	}
	first := Generation{Owners: make([]uint32, size), Backups: make([]uint32, size), Both: g.Both, Coming: g.Coming}
	last := Generation{Owners: make([]uint32, size), Backups: make([]uint32, size), Both: g.Both, Coming: g.Coming}
	n := uint64(len(g.Owners))
	begin := uint64(0) // the first hash of the slot
	for s := range size {
		end := firstHash(uint64(s)+1, uint64(size))
		from, to := begin*n>>32, (end-1)*n>>32
		first.Owners[s], first.Backups[s] = g.Owners[from], g.Backups[from]
		last.Owners[s], last.Backups[s] = g.Owners[to], g.Backups[to]
		begin = end
	}
	layers = append(layers, layer{Generation: first, slots: int(n), number: number})
	if uint64(size)%n == 0 {
		return layers
	}
	return append(layers, layer{Generation: last, slots: int(n), number: number, border: true})
}

// firstHash returns the smallest upper half of a hash that is in a slot.
func firstHash(slot, size uint64) uint64 { return (slot<<32 + size - 1) / size }
