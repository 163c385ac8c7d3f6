// Package upkeep keeps the parts of a host that weir owns as they should be. What holds is compared
// with what should hold, never with what held before: when the kernel says that something has
// changed, and once a second anyway. A difference is repaired at once and told once. weir does not
// fight another owner: see Ledger.
//
// The owner of a part says how it should be and how to repair it (Part); this package says when to
// look, whether to repair, and what to tell people.
package upkeep
