package node

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/config"
	"weir.io/weir/lab/netlab"
)

// Full NAT sends from the first addresses of an overlay's interfaces, which may have one for each
// family, and from the node's own in a family that they do not have.
func TestOverlay(t *testing.T) {
	l := netlab.ForTest(t)
	h := l.Host("node")
	if err := h.Do(func() error {
		var errs []error
		for _, name := range []string{"flannel.1", "flannel-v6.1", "empty"} {
			link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
			errs = append(errs, netlink.LinkAdd(link), netlink.LinkSetUp(link))
		}
		return errors.Join(errs...)
	}); err != nil {
		t.Fatal(err)
	}
	h.Address("flannel.1", "10.244.3.0/32", "10.244.3.9/32")
	h.Address("flannel-v6.1", "fd00:244:3::1/128")
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	read := func(o *overlay, interfaces []string) (err error) {
		if doErr := h.Do(func() error { err = o.read(interfaces); return nil }); doErr != nil {
			t.Fatal(doErr)
		}
		return err
	}
	for _, c := range []struct {
		interfaces, want string
	}{
		{"flannel.1", "10.244.3.0 2001:db8::7"},
		{"flannel.1 flannel-v6.1", "10.244.3.0 fd00:244:3::1"},
		{"missing flannel-v6.1", "10.0.0.7 fd00:244:3::1"},
		{"empty missing", "no interface of spec.replyInterfaces has an address: empty, missing"},
	} {
		g := groupOf("1m")
		g.Spec.ReplyInterfaces = strings.Fields(c.interfaces)
		f := factsOf("a", nodeOf(), g)
		err := read(&f.Overlay, g.Spec.ReplyInterfaces)
		if err != nil {
			if err.Error() != c.want {
				t.Errorf("%q: error %v, want %s", c.interfaces, err, c.want)
			}
			continue
		}
		text, err := file(g, nil, &f, announced{active: true}, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		read, err := config.Parse("f", text)
		if err != nil {
			t.Fatal(err)
		}
		var want []netip.Addr
		for _, word := range strings.Fields(c.want) {
			want = append(want, netip.MustParseAddr(word))
		}
		if d := read.Director; !slices.Equal(d.SNAT.Addresses, want) || !slices.Equal(d.ReplyInterfaces, g.Spec.ReplyInterfaces) {
			t.Errorf("%q: it sends from %v and takes replies from %v, want %v", c.interfaces, d.SNAT.Addresses, d.ReplyInterfaces, want)
		}
	}

	// What was there once stays: of one family while the other's is there, and while nothing is.
	both, was := []string{"flannel.1", "flannel-v6.1"}, overlay{}
	if err := read(&was, both); err != nil {
		t.Fatal(err)
	}
	now := was
	for _, name := range both {
		if err := h.Do(func() error {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			return netlink.LinkDel(link)
		}); err != nil {
			t.Fatal(err)
		}
		if err := read(&now, both); (err != nil) != (name == "flannel-v6.1") || now != was {
			t.Errorf("without %s it is %v with error %v, and was %v", name, now, err, was)
		}
	}
}
