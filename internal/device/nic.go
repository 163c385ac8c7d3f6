package device

import (
	"errors"
	"fmt"
	"slices"
)

// NIC is the flow table of an interface, which it names, with the queues that are for rules alone.
type NIC string

// Rule returns the rule that lies somewhere: see RuleAt.
func (n NIC) Rule(location uint32) (Rule, bool, error) { return RuleAt(string(n), location) }

// Insert adds a rule: see InsertRule.
func (n NIC) Insert(r Rule, chooses bool) (location uint32, err error) {
	return InsertRule(string(n), r, chooses)
}

// Delete takes a rule out.
func (n NIC) Delete(location uint32) error { return DeleteRule(string(n), location) }

// Able returns the flow table if flows can be led to these queues. It changes nothing.
func (n NIC) Able(queues []uint32) (RuleTable, error) {
	if err := CanSteer(string(n)); err != nil {
		return RuleTable{}, err
	}
	if err := n.has(queues); err != nil {
		return RuleTable{}, err
	}
	return RulesOf(string(n))
}

func (n NIC) has(queues []uint32) error {
	have, err := ReceiveQueues(string(n))
	if err != nil {
		return err
	}
	if most := slices.Max(append(queues, 0)); most >= have {
		return fmt.Errorf("%s has %d receive queues, and queue %d is to be for flows with rules", n, have, most)
	}
	return nil
}

// Keep switches the flow table on, and keeps packets without a rule off queues. Where the driver has no indirection table they may come
// there, as far as the driver spreads them at all: that costs nothing but time.
func (n NIC) Keep(queues []uint32) error {
	if err := n.has(queues); err != nil {
		return err
	}
	if err := SwitchRulesOn(string(n)); err != nil {
		return err
	}
	if err := KeepRSSOff(string(n), queues); !errors.Is(err, ErrNoRSS) {
		return err
	}
	return nil
}

// GiveBack lets RSS use queues again, as the driver does by default.
func (n NIC) GiveBack(queues []uint32) error {
	table, err := Indirection(string(n))
	if errors.Is(err, ErrNoRSS) || err == nil && slices.ContainsFunc(table, func(q uint32) bool { return slices.Contains(queues, q) }) {
		return nil // nobody keeps packets off them
	}
	if err != nil {
		return err
	}
	return SetIndirection(string(n), nil) // no entries: the driver's default
}
