// Package sim simulates by discrete events how the policy that places requests on servers affects
// their times: for clusters that no lab has room for, and for policies that weir does not have.
//
// The model is that of queueing theory; tests compare it with the exact results. Requests arrive as
// a Poisson process, each at one of the directors. The director's policy places it at once and for
// good on one server, which serves its requests in order of arrival. Time is in mean service times
// of a server of mean weight. The model leaves out the cost of forwarding, and networks: a report
// is only as old as its interval makes it.
//
// A run is a function of its configuration and seed. With the same seed all policies see the same
// arrivals and the same service times, which makes ratios between them less noisy than the times
// themselves.
package sim
