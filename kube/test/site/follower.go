package site

import (
	"context"
	"fmt"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Follower remembers when EndpointSlices, as a watcher of the API server sees them, first said
// something of a pod.
type Follower struct {
	mu    sync.Mutex
	first map[state]time.Time
}

// state is what a slice says of a pod of a Service.
type state struct {
	service, pod string
	ready        bool // false: it terminates
}

func (s *Site) follow(ctx context.Context) (*Follower, error) {
	list, err := s.Discovery.EndpointSlices(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list EndpointSlices: %w", err)
	}
	watcher, err := s.Discovery.EndpointSlices(Namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, fmt.Errorf("watch EndpointSlices: %w", err)
	}
	f := &Follower{first: map[state]time.Time{}}
	go func() {
		for event := range watcher.ResultChan() {
			f.see(event, time.Now())
		}
	}()
	return f, nil
}

func (f *Follower) see(event watch.Event, now time.Time) {
	slice, is := event.Object.(*discoveryv1.EndpointSlice)
	if !is {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range slice.Endpoints {
		if e.TargetRef == nil {
			continue
		}
		for _, ready := range []bool{true, false} {
			value := e.Conditions.Ready
			if !ready {
				value = e.Conditions.Terminating
			}
			one := state{slice.Labels[discoveryv1.LabelServiceName], e.TargetRef.Name, ready}
			if _, known := f.first[one]; value != nil && *value && !known {
				f.first[one] = now
			}
		}
	}
}

// SliceSince returns since when a Service's EndpointSlices have said that a pod is ready; or, with
// false, that it terminates. It is zero while they do not.
func (s *Site) SliceSince(service, pod string, ready bool) time.Time {
	s.follower.mu.Lock()
	defer s.follower.mu.Unlock()
	return s.follower.first[state{service, pod, ready}]
}
