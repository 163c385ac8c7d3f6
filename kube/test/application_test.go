package kube

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

const shopVIP, blogVIP = "203.0.113.1", "203.0.113.17"

// Two applications have their own directors, as pods of one node. Both applications are reached
// from outside; a deleted director withdraws its routes before it ends, and the others replace a
// killed one.
func TestWithTheApplication(t *testing.T) {
	l := newApplicationLab(t)
	l.controller("first")
	l.release("shop")
	l.release("blog")
	a, b, c := l.nginx("pod1"), l.nginx("pod2"), l.nginx("pod3")
	l.pretend("shop")
	shop1, shop2, blog1 := l.director("shop", "shop-1"), l.director("shop", "shop-2"), l.director("blog", "blog-1")
	l.serves("shop", a, b)
	l.serves("blog", c)

	l.waitForDirectors("shop", "shop-1", "shop-2")
	l.waitForDirectors("blog", "blog-1")
	l.waitForHops(shopVIP, shop1, shop2)
	l.waitForHops(blogVIP, blog1)
	for application, want := range map[string]string{"shop": shopVIP + " Proxy", "blog": blogVIP + " Proxy"} {
		waitFor(t, "the status of "+application+" to say "+want, func() bool { return l.ingress(application) == want })
	}
	l.reaches(shopVIP, "pod1", "pod2")
	l.reaches(blogVIP, "pod3")
	l.seen(shopVIP, shop1, shop2)
	l.seen(blogVIP, blog1)
	for p, want := range map[*directorPod]string{shop1: "shop/shop/80-tcp", shop2: "shop/shop/80-tcp", blog1: "blog/blog/80-tcp"} {
		if got := p.forwards(); got != want {
			t.Errorf("%s forwards %q, want %q", p.Name, got, want)
		}
	}

	l.transfers(shopVIP)

	// shop-1 is deleted. One request may be under way when the node changes its route: only shop-1
	// knows its translation.
	shop1.delete()
	failed := 0
	for end := shop1.ended(); !end(); {
		if _, err := l.ask(shopVIP); err != nil {
			failed++
			t.Logf("while shop-1 ends: %v", err)
		}
	}
	if failed > 1 {
		t.Errorf("%d requests failed while shop-1 ended", failed)
	}
	l.waitForHops(shopVIP, shop2)
	if left, err := os.ReadDir(filepath.Join(shop1.pins, "shop-1")); err != nil || len(left) > 0 {
		t.Errorf("shop-1 has left %v, error %v", left, err)
	}
	shop1.gone()
	l.waitForDirectors("shop", "shop-2")
	waitFor(t, "its Lease to be gone", func() bool {
		_, err := l.coordination.Leases("shop").Get(t.Context(), group.LeaseName("shop", "shop-1"), metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})

	// A new director is announced, has the other one's services, and removes what shop-1 left.
	shop3 := l.director("shop", "shop-3")
	l.waitForHops(shopVIP, shop2, shop3)
	l.seen(shopVIP, shop2, shop3)
	waitFor(t, "what shop-1 has left to be gone", func() bool { _, err := os.Stat(filepath.Join(shop3.pins, "shop-1")); return os.IsNotExist(err) })

	// shop-2 is killed, with its sidecar and its network.
	stop(t, shop2.sidecar)
	stop(t, shop2.weir)
	shop2.gone()
	l.waitForHops(shopVIP, shop3)
	for range 20 {
		if _, err := l.ask(shopVIP); err != nil {
			t.Errorf("after shop-2 was killed: %v", err)
		}
	}
	l.waitForDirectors("shop", "shop-3")
	if left, err := os.ReadDir(filepath.Join(shop3.pins, "shop-2")); err != nil || len(left) == 0 {
		t.Errorf("shop-2 was killed and has left %v, error %v", left, err)
	}
	shop4 := l.director("shop", "shop-4")
	l.waitForHops(shopVIP, shop3, shop4)
	waitFor(t, "what shop-2 has left to be gone", func() bool { _, err := os.Stat(filepath.Join(shop4.pins, "shop-2")); return os.IsNotExist(err) })
	l.waitForDirectors("blog", "blog-1")
	l.reaches(blogVIP, "pod3")
}

// transfers makes large requests, and requests for large answers: senders and nodes merge segments,
// and leave checksums to others.
func (l *applicationLab) transfers(vip string) {
	l.t.Helper()
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: l.client.DialContext}}
	for range 4 { // through each director
		answer, err := client.Get("http://" + vip + "/large")
		if err != nil {
			l.t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if err != nil || n != large {
			l.t.Errorf("of a large answer %d of %d bytes came, %v", n, large, err)
		}
		if answer, err = client.Post("http://"+vip+"/count", "application/octet-stream", bytes.NewReader(make([]byte, large))); err != nil {
			l.t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			l.t.Errorf("a large request is answered by %s", answer.Status)
		}
	}
}

// pretend writes a Lease like a director's, in namespaces other than the group's.
func (l *applicationLab) pretend(name string) {
	l.t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: group.LeaseName(name, "stranger"), Labels: map[string]string{v1alpha1.LabelGroup: name},
		Annotations: map[string]string{group.AnnotationDirector: group.Presence{Node: "stranger"}.String()}}}
	for _, namespace := range []string{"default", "weir-system"} {
		if _, err := l.coordination.Leases(namespace).Create(l.t.Context(), lease, metav1.CreateOptions{}); err != nil {
			l.t.Fatal(err)
		}
	}
}

// waitForDirectors waits until a group's status has these directors.
func (l *applicationLab) waitForDirectors(name string, want ...string) {
	l.t.Helper()
	waitFor(l.t, "the directors of "+name+" to be "+strings.Join(want, " "), func() bool {
		var g v1alpha1.DirectorGroup
		text, err := l.core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1/directorgroups", name).Do(l.t.Context()).Raw()
		if err != nil || json.Unmarshal(text, &g) != nil {
			return false
		}
		var got []string
		for _, d := range g.Status.Directors {
			got = append(got, d.Node)
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	})
}

// seen waits until the application's pods have seen each of these directors as a client, and fails
// if they see another client.
func (l *applicationLab) seen(vip string, directors ...*directorPod) {
	l.t.Helper()
	left := map[string]bool{}
	for _, p := range directors {
		left[p.address] = true
	}
	known := len(left)
	seen := map[string]bool{}
	waitFor(l.t, "each director to be seen", func() bool {
		_, client, err := l.askSeen(vip)
		if err == nil && !left[client] {
			l.t.Fatalf("a pod has seen %s, which is no director of these", client)
		}
		if err == nil {
			seen[client] = true
		}
		return len(seen) == known
	})
}

// ended returns a function that reports whether both containers have ended.
func (p *directorPod) ended() func() bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.sidecar.Wait()
		_ = p.weir.Wait()
	}()
	return func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}
