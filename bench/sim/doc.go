// Package sim simulates how a policy that places requests on servers shapes the time
// that they take, by discrete events: for clusters that no lab has room for, and for
// policies that weir does not have.
//
// The model is that of queueing theory, whose exact results its tests hold it against.
// Requests arrive as a Poisson process, each at one of the directors. The director's
// policy places it at once and for good on one server, which serves what it has got in
// order of arrival. Time is in mean service times of a server of mean weight. What
// forwarding costs is not in it, nor are networks: a report is as old as its interval
// makes it, and not older.
//
// A run is a function of its configuration and seed. With the same seed all policies
// see the same arrivals and the same service times, which makes ratios between them
// less noisy than they are.
package sim
