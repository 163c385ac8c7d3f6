package node

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// certificate has the PEM files with which the node's director connects to OVN's servers: its own certificate and key, and
// the CA of the servers' certificates. The files may not be there yet.
type certificate struct {
	ca, cert, key string
	secret        string // that they are made of
	read          time.Time
	err           error // why the last read failed; files of an earlier one stay in use
}

// The keys of a Secret that they are made of: those of kubernetes.io/tls, and what cert-manager adds.
const (
	keyCA   = "ca.crt"
	keyCert = "tls.crt"
	keyKey  = "tls.key"
)

// readCertificate returns the files of TLS for the group's OVN. Directors read them with each connection.
func (n *Node) readCertificate(ctx context.Context, g *v1alpha1.DirectorGroup, now time.Time) certificate {
	o := translate.OVNOf(g, n.Node)
	if !o.Secure {
		n.ovn = certificate{}
		return n.ovn
	}
	if n.ovn.secret != o.Secret || n.ovn.ca == "" {
		at := func(part string) string {
			return filepath.Join(filepath.Dir(n.File), fmt.Sprintf("ovn-%s.%s.pem", cmp.Or(o.Secret, "none"), part))
		}
		n.ovn = certificate{ca: at("ca"), cert: at("cert"), key: at("key"), secret: o.Secret}
	}
	if now.Sub(n.ovn.read) < secretPace {
		return n.ovn
	}
	n.ovn.read, n.ovn.err = now, nil
	if err := n.writeCertificate(ctx); err != nil {
		n.ovn.err = fmt.Errorf("read the certificate for OVN of DirectorGroup %s: %w", g.Name, err)
	}
	return n.ovn
}

// writeCertificate writes the files as the Secret has them, all or none.
func (n *Node) writeCertificate(ctx context.Context) error {
	c := &n.ovn
	if c.secret == "" {
		return fmt.Errorf("spec.ovn has no certificateSecret for node %s", n.Node)
	}
	s, err := n.core.Secrets(n.Namespace).Get(ctx, c.secret, metav1.GetOptions{})
	if err != nil {
		return err
	}
	parts := []struct{ key, file string }{{keyCA, c.ca}, {keyCert, c.cert}, {keyKey, c.key}}
	for _, p := range parts {
		if len(s.Data[p.key]) == 0 {
			return fmt.Errorf("there is no key %s in Secret %s", p.key, c.secret)
		}
	}
	for _, p := range parts {
		if err := replace(p.file, s.Data[p.key]); err != nil {
			return err
		}
	}
	return nil
}

// ofOVN says why the director does not follow the group's OVN, or is not known to its hosts; empty: it does and is;
// nil: it is not to.
func (n *Node) ofOVN(g *v1alpha1.DirectorGroup) *string {
	if g == nil || g.Spec.OVN == nil {
		return nil
	}
	return ptr.To(shortened(lacksOVN(n.ovn.err, n.report.ovn)))
}

// lacksOVN says so by why there is no certificate, and by what the director says.
func lacksOVN(secret error, s *model.OVNStatus) string {
	switch {
	case secret != nil:
		return secret.Error()
	case s == nil:
		return "weir run does not follow it: it has not been told of it yet, or becomes a VTEP at its next start"
	case s.Problem != "":
		return s.Problem
	case !s.Connected:
		return "it has no connection to OVN's Southbound database"
	case s.IPsec:
		return "OVN encrypts all tunnels, and its hosts take no packets that are not (IPsec)"
	case s.Unregistered != "":
		return s.Unregistered
	case !s.Registered:
		return "OVN's hosts do not know it yet"
	}
	return ""
}

// withoutOVN returns a group whose directors leave OVN's chassis: without OVN, and without the networks of which only
// OVN knows the VNIs.
func withoutOVN(g *v1alpha1.DirectorGroup) *v1alpha1.DirectorGroup {
	if g.Spec.OVN == nil {
		return g
	}
	g = g.DeepCopy()
	g.Spec.OVN = nil
	g.Spec.Segments = slices.DeleteFunc(g.Spec.Segments, func(s v1alpha1.DirectorSegment) bool { return s.Network != "" })
	return g
}
