package datapath

import (
	"maps"
	"slices"
	"testing"
)

// TestPackets runs the packet tables: a packet in; the verdict, the packet out
// byte for byte and every counter. After them, each reason must have had a row.
func TestPackets(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	routeReplies(t)
	for _, table := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"forward", testForward},
		{"headers", testHeaders},
		{"jumbo frames", testJumboFrames},
		{"zero checksums", testZeroChecksums},
		{"checksums that arrive", testArrivingChecksums},
		{"truncated", testTruncated},
		{"no service", testPassWhatIsNoService},
		{"not IP", testPassWhatIsNotIP},
		{"segments and tags", testSegmentsAndTags},
		{"egress", testEgress},
		{"headroom", testNoHeadroom},
		{"port ranges", testPortRanges},
		{"opened", testOpened},
		{"dead backends", testDeadBackends},
		{"rows", testRows},
		{"rows of pods", testRowsOfPods},
		{"p2c", testP2C},
		{"p2c, periods", testLoadPeriods},
		{"policies", testPolicies},
		{"affinity", testAffinity},
		{"refused", testRefused},
		{"refused otherwise", testRefusedOtherwise},
		{"hosts that are VIPs", testHostsThatAreVIPs},
		{"kept from the kernel", testKeptFromKernel},
		{"late answers", testLateAnswers},
		{"source ranges", testSourceRanges},
		{"kernel sources", testKernelSourcesPass},
		{"local backend", testLocalBackend},
		{"pods", testPods},
		{"icmp errors", testICMPErrors},
		{"echo", testEcho},
		{"echo, checksums", testEchoSums},
		{"echo, options", testEchoOptions},
		{"fragments", testFragments},
		{"fragment of a dead backend", testFragmentOfDeadBackend},
		{"fragment entries expire", testFragmentEntryExpires},
		{"steered", testSteered},
		{"steered, flow memory", testSteeredMemory},
		{"steered, once more", testSteeredAgain},
		{"flows with many packets", testHeavyFlows},
		{"group", testGroup},
		{"group, other links", testGroupLinks},
		{"group, rate of waiting", testGroupWaitRate},
		{"group, twin", testGroupTwin},
		{"group, probes", testGroupProbes},
		{"too big", testTooBig},
		{"too big, limited", testTooBigLimited},
		{"too big, rate", testTooBigRate},
		{"too big, sources", testTooBigSources},
		{"too big, segments", testTooBigSegments},
		{"nat errors", testNATErrors},
		{"nat fragments", testNATFragments},
		{"nat variants", testNATVariants},
		{"nat replies", testReplies},
		{"nat replies to this host", testOwnFlows},
		{"redirect", testRedirect},
		{"redirect with full NAT", testRedirectFullNAT},
		{"redirect with full NAT, again", testRedirectFullNATAgain},
		{"not redirected", testNotRedirected},
		{"redirect, twin", testRedirectTwin},
		{"asking", testAsk},
		{"asking, answers", testAskAnswers},
		{"asking, downgrade", testAskDowngrade},
		{"asking, taken", testAskTaken},
		{"asking, connections after one", testAskAgain},
		{"asking, backends", testAskBackends},
		{"asking, twin", testAskTwin},
		{"asking, forged", testAskForged},
		{"quic vectors", testQUICVectors},
		{"quic, what names nobody", testQUICUnroutable},
		{"quic, every length", testQUICLengths},
		{"quic, twin", testQUICTwin},
		{"full nat", testFullNAT},
		{"full nat's table", testSNATTable},
		{"undo", testUndo},
		{"undo leaves others", testUndoLeavesOthers},
		{"undo full nat", testUndoFullNAT},
		{"take replies", testTakeReply},
		{"take replies, mutated", testMutatedReplies},
		{"flow memory", testFlows},
		{"segments with a limit", testSegmentLimit},
		{"segments with a limit, fragments", testSegmentLimitOfFragments},
		{"full nat, full table", testFullTable},
		{"full nat, replaced flows", testReplacedFlows},
		{"full nat, states", testFlowStates},
		{"what is known of flows", testProof},
		{"full nat, flows of before", testSNATOfBefore},
		{"full nat, timeouts", testFlowTimeouts},
		{"full nat, backends", testFlowsAndBackends},
		{"full nat, no source", testNoSource},
		{"health checks", testChecks},
		{"tunnels", testTunnels},
		{"tunnels, full nat's source inside", testSourceInside},
		{"tunnels, other networks", testConversions},
	} {
		t.Run(table.name, table.run)
	}
	t.Run("every reason has a row", testEveryReason)
	t.Run("every event of asking has a row", testEveryAskEvent)
}

// testEveryReason needs no exception: every reason can be reached through
// BPF_PROG_TEST_RUN.
func testEveryReason(t *testing.T) {
	for _, reason := range slices.Sorted(maps.Keys(reasonNames())) {
		if hit.reasons[reason] == "" {
			t.Errorf("no row is about %s", reasonName(reason))
		}
	}
}
