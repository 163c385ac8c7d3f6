// Package explain asks a director what it would do with a packet, and says it in words: it
// builds the packet that a question describes, adds to the answer which generations of the
// service's log place the flow, and describes frames header by header.
package explain
