package follow

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// An API server that is not there is asked until it is; what an API server answers is returned at
// once.
func TestAsksUntilSomebodyAnswers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	client, err := Resources(&rest.Config{Host: "http://" + at})
	if err != nil {
		t.Fatal(err)
	}
	source := patient(cache.NewFilteredListWatchFromClient(client, "addresspools", "", func(*metav1.ListOptions) {}), "addresspools")

	ctx, stop := context.WithCancel(t.Context())
	stop()
	var at2 *net.OpError
	if _, err := source.ListWithContext(ctx, metav1.ListOptions{}); !errors.As(err, &at2) && !errors.Is(err, context.Canceled) {
		t.Errorf("when it is to end it says %v", err)
	}

	type answer struct{ list, watch error }
	answers := make(chan answer)
	go func() {
		var a answer
		_, a.list = source.ListWithContext(t.Context(), metav1.ListOptions{})
		_, a.watch = source.WatchWithContext(t.Context(), metav1.ListOptions{})
		answers <- a
	}()
	select {
	case a := <-answers:
		t.Fatalf("nobody is there, and it says %v", a)
	case <-time.After(2 * askAgain): // it has asked, and waits
	}
	if l, err = net.Listen("tcp", at); err != nil {
		t.Fatalf("somebody else listens at %s now: %v", at, err)
	}
	// A load balancer in front of servers that are away takes connections, and ends them.
	for range 2 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusForbidden)
	})}}
	server.Start()
	t.Cleanup(server.Close)
	if a := <-answers; a.list == nil || a.watch == nil || isNobodyThere(a.list) || isNobodyThere(a.watch) {
		t.Errorf("an API server that refuses is there, and it says %v", a)
	}
}
