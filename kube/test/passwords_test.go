package kube

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/kube/v1alpha1"
)

// signedRouter is a router that accepts no session without its password (TCP MD5).
const signedRouter = `
router bgp 65000
 bgp router-id 10.2.0.1
 no bgp ebgp-requires-policy
 bgp bestpath as-path multipath-relax
 neighbor directors peer-group
 neighbor directors remote-as 65001
 neighbor directors advertisement-interval 0
 neighbor directors password first-one
 neighbor 10.2.0.11 peer-group directors
 neighbor 10.2.0.12 peer-group directors
 neighbor 10.2.0.13 peer-group directors
 address-family ipv4 unicast
  maximum-paths 16
 exit-address-family
`

// A peer's sessions are signed with a Secret's password. Without the Secret, or with another
// password than the router's, there is no session, and the peer's condition says why. With the
// right Secret there is one, also after the router's password was changed.
func TestPasswordsOfPeers(t *testing.T) {
	l := newGroupLab(t, groupOptions{values: "testdata/password.values.yaml", bgp: signedRouter})
	l.waitForFit()
	l.controller("first")
	l.waitForStatus("node-a node-b, 1 stand by")
	l.pods("web", 1, 2)
	l.service("web")
	l.waitForAddresses("web", vip)

	// The Secret does not exist.
	l.established("tor", metav1.ConditionFalse, v1alpha1.ReasonDown, `3 of 3 nodes have no session with it: node-a: read the password of BGPPeer tor: secrets "tor-password" not found; node-b: `)

	// The Secret exists, without the key.
	l.secret("tor-password", map[string][]byte{"key": []byte("first-one")})
	l.established("tor", metav1.ConditionFalse, v1alpha1.ReasonDown, "Secret tor-password has no key password")

	// The Secret has another password.
	l.secret("tor-password", map[string][]byte{"password": []byte("second-one")})
	l.established("tor", metav1.ConditionFalse, v1alpha1.ReasonDown, "no answer: it is not there, or a packet filter is between, or it has another password")
	if hops := l.hops(); hops != "" {
		t.Errorf("with another password the router sends to %q", hops)
	}

	// The Secret has an impossible password.
	l.secret("tor-password", map[string][]byte{"password": []byte(strings.Repeat("x", 81))})
	l.established("tor", metav1.ConditionFalse, v1alpha1.ReasonDown, "has 81 characters, not 1 to 80")

	// The Secret has the router's password.
	l.secret("tor-password", map[string][]byte{"password": []byte("first-one")})
	l.established("tor", metav1.ConditionTrue, v1alpha1.ReasonSpeaks, "3 nodes have a session with it")
	l.waitForHops("node-a node-b")
	l.reaches(vip, "pod1", "pod2")

	// The router's password is changed, and then the Secret.
	if err := l.frr.Configure("router bgp 65000", "neighbor directors password second-one"); err != nil {
		t.Fatal(err)
	}
	l.established("tor", metav1.ConditionFalse, v1alpha1.ReasonDown, "another password")
	l.waitForHops("")
	l.secret("tor-password", map[string][]byte{"password": []byte("second-one")})
	l.established("tor", metav1.ConditionTrue, v1alpha1.ReasonSpeaks, "3 nodes")
	l.waitForHops("node-a node-b")
	l.reaches(vip, "pod1", "pod2")

	// The Secret is lost: the condition says so, and the existing sessions go on.
	if err := l.core.Secrets("weir-system").Delete(t.Context(), "tor-password", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.established("tor", metav1.ConditionFalse, v1alpha1.ReasonDown, `secrets "tor-password" not found`)
	if hops := l.hops(); hops != "node-a node-b" {
		t.Errorf("after the Secret was removed the router sends to %q", hops)
	}
	l.answered(10, "after the Secret was removed")

	// Nodes may not read a Secret that the chart does not name, although it exists.
	l.secret("other", map[string][]byte{"password": []byte("second-one")})
	patch := []byte(`{"spec": {"passwordSecret": "other"}}`)
	if err := l.core.RESTClient().Patch(types.MergePatchType).AbsPath("/apis/weir.io/v1alpha1/bgppeers/tor").Body(patch).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	l.established("tor", metav1.ConditionFalse, v1alpha1.ReasonDown, `secrets "other" is forbidden`)
}

// secret creates or updates a Secret in the controller's namespace with this data.
func (l *groupLab) secret(name string, data map[string][]byte) {
	l.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	_, err := l.core.Secrets("weir-system").Update(l.t.Context(), s, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = l.core.Secrets("weir-system").Create(l.t.Context(), s, metav1.CreateOptions{})
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// established waits until a peer's condition has this status, reason and text.
func (l *groupLab) established(name string, status metav1.ConditionStatus, reason, text string) {
	l.t.Helper()
	last := ""
	defer func() {
		if l.t.Failed() {
			l.t.Logf("BGPPeer %s says %s", name, last)
		}
	}()
	waitFor(l.t, fmt.Sprintf("BGPPeer %s to be Established: %s, %s, %q", name, status, reason, text), func() bool {
		var p v1alpha1.BGPPeer
		body, err := l.core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1/bgppeers", name).Do(l.t.Context()).Raw()
		if err != nil || json.Unmarshal(body, &p) != nil {
			return false
		}
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.Established)
		if c == nil {
			return false
		}
		last = fmt.Sprintf("%s, %s: %s", c.Status, c.Reason, c.Message)
		return c.Status == status && c.Reason == reason && strings.Contains(c.Message, text)
	})
}
