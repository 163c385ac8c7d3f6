package maglev

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestRowsNameOtherTiers(t *testing.T) {
	type row = []uint32
	coming := func(log []Generation, n int) []Generation {
		for i := range n {
			log[i].Coming = true
		}
		return log
	}
	for name, test := range map[string]struct {
		log    []Generation
		others []Tier
		gone   Gone
		own    int
		bound  int
		want   row
		age    row
		held   int
	}{
		"after their own": {log: oneSlot([2]uint32{1, 2}), others: []Tier{{Log: oneSlot([2]uint32{5, 6})}},
			want: row{1, 2, 5, 6}, age: row{1, 2, 5, 6}},
		"a tier above is older": {log: oneSlot([2]uint32{1, 2}), others: []Tier{{Log: oneSlot([2]uint32{5, 6}), Before: true}},
			want: row{1, 2, 5, 6}, age: row{5, 1, 2, 6}},
		"two tiers above, and their older owners": {log: oneSlot([2]uint32{1, 2}),
			others: []Tier{{Log: oneSlot([2]uint32{5, 6}, [2]uint32{7, 6}), Before: true}, {Log: oneSlot([2]uint32{8, 9}), Before: true}},
			want:   row{1, 2, 5, 8, 6, 7, 9}, age: row{7, 5, 8, 1, 2, 6, 9}},
		"one member has no backup": {log: oneSlot([2]uint32{1, None}), others: []Tier{{Log: oneSlot([2]uint32{5, None})}},
			want: row{1, 5}, age: row{1, 5}},
		"a full row is held for them": {log: oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}, [2]uint32{7, 8}), others: []Tier{{Log: oneSlot([2]uint32{5, 6})}}, own: 3, bound: 4,
			want: row{3, 4, 7, 5}, age: row{7, 3, 4, 5}, held: 1},
		"what gets connections before the others": {log: oneSlot([2]uint32{1, 2}), others: []Tier{{Log: both(oneSlot([2]uint32{5, 6}), 0)}, {Log: both(oneSlot([2]uint32{7, 8}), 0)}}, own: 2, bound: 5,
			want: row{1, 2, 5, 7, 6}, age: row{1, 2, 5, 7, 6}},
		"older backups of all are last": {log: oneSlot([2]uint32{1, 2}, [2]uint32{1, 3}), others: []Tier{{Log: oneSlot([2]uint32{5, 6}, [2]uint32{5, 7})}},
			want: row{1, 2, 5, 6, 3, 7}, age: row{1, 2, 5, 6, 3, 7}},
		"older owners before older backups": {log: oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}), others: []Tier{{Log: oneSlot([2]uint32{5, 6}, [2]uint32{7, 8})}}, bound: 7,
			want: row{1, 2, 3, 5, 6, 7, 4}, age: row{3, 1, 2, 5, 6, 7, 4}},
		"both, where both get connections": {log: both(oneSlot([2]uint32{1, 2}, [2]uint32{3, 4}), 0, 1), others: []Tier{{Log: both(oneSlot([2]uint32{5, 6}), 0), Before: true}}, bound: 6,
			want: row{1, 2, 3, 4, 5, 6}, age: row{5, 6, 3, 4, 1, 2}},
		"the backup of one that is gone": {log: oneSlot([2]uint32{1, 2}), others: []Tier{{Log: oneSlot([2]uint32{5, 6})}}, gone: Gone{5: None}, bound: 3,
			want: row{1, 2, 6}, age: row{1, 2, 6}},
		"of a tier that holds the slot, what places its connections": {log: oneSlot([2]uint32{1, 2}), others: []Tier{{Log: oneSlot([2]uint32{5, 6}, [2]uint32{7, 8}), Own: 2}}, bound: 3,
			want: row{1, 2, 7}, age: row{1, 2, 7}},
		"what comes, and before it what places connections": {log: oneSlot([2]uint32{1, 2}), others: []Tier{{Log: coming(oneSlot([2]uint32{5, 6}, [2]uint32{7, 8}), 1)}}, bound: 4,
			want: row{1, 2, 7, 5}, age: row{1, 2, 7, 5}},
		"once": {log: oneSlot([2]uint32{1, 2}, [2]uint32{5, 2}), others: []Tier{{Log: oneSlot([2]uint32{5, 6})}},
			want: row{1, 2, 5, 6}, age: row{5, 1, 2, 6}},
	} {
		if test.bound == 0 {
			test.bound = 8
		}
		if test.own == 0 {
			test.own = test.bound
		}
		for i := range test.others {
			if test.others[i].Own == 0 {
				test.others[i].Own = 6
			}
		}
		table := TierRows(test.log, test.others, test.gone, test.own, test.bound)
		got := table.candidates(0)
		if len(table.Lists) != 1 || table.Shared != 1 || table.Held != test.held {
			t.Errorf("%s: the row %v has %d lists, shared %d, held %d", name, got, len(table.Lists), table.Shared, table.Held)
			continue
		}
		var age row
		for _, position := range table.Lists[0].Oldest {
			age = append(age, got[position])
		}
		if !slices.Equal(got, test.want) || !slices.Equal(age, test.age) {
			t.Errorf("%s: the row is %v, by age %v; want %v, %v", name, got, age, test.want, test.age)
		}
	}
	if got := TierRows([]Generation{{}}, []Tier{{Log: oneSlot([2]uint32{5, 6})}}, nil, 8, 8); got.Slots != nil {
		t.Errorf("a tier without members has rows: %v", got)
	}
	if got := TierRows(oneSlot([2]uint32{1, 2}), []Tier{{Log: []Generation{{}}}}, nil, 8, 8); len(got.Lists) != 0 {
		t.Errorf("rows name something of a tier without members: %v", got)
	}
}

// By age an owner of another tier is on the side of the border where it owned the slot.
func TestBordersOfOtherTiers(t *testing.T) {
	log := []Generation{{Owners: []uint32{1, 1, 1}, Backups: []uint32{2, 2, 2}}}
	tier := Tier{Log: []Generation{{Owners: []uint32{3, 4}, Backups: []uint32{5, 5}}}, Own: 6, Before: true}
	table := TierRows(log, []Tier{tier}, nil, 6, 8)
	if table.Older != 2 {
		t.Fatalf("the older ring has %d slots, want 2", table.Older)
	}
	list := table.Lists[table.Slots[1].Next&^ListFlag]
	row := table.candidates(1)
	if row[list.Oldest[0]] != 3 || row[list.Beyond[0]] != 4 {
		t.Errorf("on the border the row is %v, by age %v and %v", row, list.Oldest, list.Beyond)
	}
}

// Tiers of random histories: whatever tier a director uses, its row names the member on which each other tier places the
// slot's connections, also where that tier holds the slot, and its own first candidate is the same as if there were room for
// its own alone.
func TestEachTierNamesTheOthers(t *testing.T) {
	r := rand.New(rand.NewPCG(28, 1))
	named, held := 0, 0
	for range 10 {
		bound, tiers := 6+2*r.IntN(2), 2+r.IntN(2)
		own := func(tier int) int { return (bound + tiers - 1 - tier) / tiers }
		logs := make([][]Generation, tiers)
		dead := Gone{}
		for range 30 {
			for k := range logs {
				if r.IntN(2) > 0 {
					g := randomGeneration(r, historySlots, historyMembers, nil)
					for _, of := range [][]uint32{g.Owners, g.Backups} {
						for i := range of {
							if of[i] != None {
								of[i] += uint32(100 * k)
							}
						}
					}
					logs[k] = slices.Insert(logs[k], 0, g)
				}
				if len(logs[k]) > 1 && r.IntN(3) == 0 {
					logs[k] = logs[k][:len(logs[k])-1]
				}
			}
			if len(dead) < 3 && r.IntN(10) == 0 {
				dead[uint32(r.IntN(historyMembers)+100*r.IntN(tiers))] = None
			}
			for k := range logs {
				var others []Tier
				for j := range logs {
					if j != k {
						others = append(others, Tier{Log: logs[j], Own: own(j), Before: j < k})
					}
				}
				table := TierRows(logs[k], others, dead, own(k), bound)
				alone := Rows(logs[k], dead, own(k))
				for slot := range table.Slots {
					row := table.candidates(slot)
					if first := alone.Slots[slot].Owner; len(row) > bound || first != None && row[0] != first {
						t.Fatalf("of at most %d, tier %d has the row %v, alone it begins with %d", bound, k, row, alone.Slots[slot].Owner)
					}
					for j := range logs {
						if j == k || len(logs[j]) == 0 {
							continue
						}
						first := Rows(logs[j], dead, own(j)).Slots[slot].Owner
						if first != logs[j][0].Owners[slot] {
							held++
						}
						named++
						if first != None && !slices.Contains(row, first) {
							t.Fatalf("the row %v of tier %d has no room for %d of tier %d", row, k, first, j)
						}
					}
				}
			}
		}
	}
	if named == 0 || held == 0 {
		t.Errorf("%d were named, %d held", named, held)
	}
}
