package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// storeHost is the etcd's host number in the servers' network.
const storeHost = 5

// storeMembers survive the loss of one.
const storeMembers = 3

// sharedStore is the etcd in which the directors share the services and their logs.
type sharedStore struct {
	host      *netlab.Host
	endpoints []string
	peers     []string
	members   []*process.Process
}

// startStore starts every member. Directors themselves wait for them.
func startStore(host *netlab.Host) (*sharedStore, error) {
	s := &sharedStore{host: host, members: make([]*process.Process, storeMembers)}
	for i := range storeMembers {
		s.endpoints = append(s.endpoints, fmt.Sprintf("http://%s:%d", lanAddress(storeHost), 2379+10*i))
		s.peers = append(s.peers, fmt.Sprintf("http://%s:%d", lanAddress(storeHost), 2380+10*i))
	}
	for i := range storeMembers {
		if err := s.start(i); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *sharedStore) start(i int) (err error) {
	name := func(i int) string { return fmt.Sprintf("etcd%d", i+1) }
	var cluster []string
	for j, peer := range s.peers {
		cluster = append(cluster, name(j)+"="+peer)
	}
	s.members[i], err = process.Start(s.host, name(i), "etcd", "--name", name(i), "--data-dir", filepath.Join(s.host.Dir(), name(i)),
		"--listen-client-urls", s.endpoints[i], "--advertise-client-urls", s.endpoints[i],
		"--listen-peer-urls", s.peers[i], "--initial-advertise-peer-urls", s.peers[i],
		"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new")
	return err
}

// kill ends a member as a power cut does.
func (s *sharedStore) kill(i int) error { return s.members[i].Kill() }
