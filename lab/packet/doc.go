// Package packet builds and checks packets in tests. Build serialises a list of
// headers with its own code; Check, Diff and VerifyChecksums read frames with
// gopacket, so that what one side writes is judged by the other.
package packet
