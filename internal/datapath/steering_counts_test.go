package datapath

import (
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/datapath/abi"
)

// Packets are counted while they are read: what is not counted yet is not counted below zero.
func TestCountsBelowZero(t *testing.T) {
	t.Parallel()
	for _, q := range []abi.SteeredQueue{{Packets: 9, Usual: 10, Bytes: 900, UsualBytes: 1000}, {Packets: 10, Usual: 10, Bytes: 10, UsualBytes: 10}} {
		if by := byTable(&q); by.packets != 0 || by.bytes != 0 {
			t.Errorf("of %+v %+v have gone by the table", q, by)
		}
	}
}

// Two flows whose words would look alike have no place in one pair, and no client can choose an address by which
// its flow looks like another one: the keys of the hash are random.
func TestWordsAlike(t *testing.T) {
	t.Parallel()
	const pairs = 8
	alike := func(keys [2]uint64) *steering {
		return &steering{
			words: bpfload.Memory[abi.SteeredWords]{Entries: make([]abi.SteeredWords, pairs)}, flows: bpfload.Memory[abi.SteeredFlow]{Entries: make([]abi.SteeredFlow, pairs*steeredPlaces)},
			data: bpfload.Memory[steeringData]{Entries: []steeringData{{Mask: pairs - 1, Keys: keys}}}, now: time.Now,
		}
	}
	// With known keys there is such an address for every /64: the difference of one half, undone by the other.
	known := [2]uint64{1, 3}
	one := steeredKey{addressWords(netip.MustParseAddr("2001:db8:1::7")), 80, 5}
	other := one
	other.address[0] += 3
	other.address[1]--
	s := alike(known)
	if s.hash(one) != s.hash(other) {
		t.Fatalf("the hashes are %#x and %#x", s.hash(one), s.hash(other))
	}
	if !s.addFlow(one) || s.addFlow(other) {
		t.Error("two flows whose words look alike have a place each")
	}
	if s := alike([2]uint64{0x9e3779b97f4a7c15, 0xd1b54a32d192ed03}); s.hash(one) == s.hash(other) || !s.addFlow(one) || !s.addFlow(other) {
		t.Error("the flows look alike with other keys, too")
	}
}
