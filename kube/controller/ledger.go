package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"

	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

// managedBy is what the label ipaddress.kubernetes.io/managed-by of weir's claims says.
const managedBy = "weir.io"

// forget is how long it is remembered that an address is somebody else's.
const forget = time.Minute

// ledger is who has which address. An address is claimed by an object of kind IPAddress,
// whose name it is: there can be but one, and what it says is replaced only by who has read
// it, so no two processes ever give it to two Services that cannot share it, whatever they
// have not seen of each other. What this process has written and not yet read back is
// remembered here.
type ledger struct {
	client  networkingv1client.IPAddressInterface
	seen    map[netip.Addr]claim
	made    map[netip.Addr]claim
	gone    map[netip.Addr]bool
	foreign map[netip.Addr]foreign
}

type foreign struct {
	claim
	until time.Time
}

func newLedger(client networkingv1client.IPAddressInterface) ledger {
	return ledger{client: client, made: map[netip.Addr]claim{}, gone: map[netip.Addr]bool{}, foreign: map[netip.Addr]foreign{}}
}

// read takes what there is.
func (l *ledger) read(seen map[netip.Addr]claim) {
	l.seen = seen
	maps.DeleteFunc(l.made, func(a netip.Addr, m claim) bool { s, read := seen[a]; return read && !s.before(m) })
	maps.DeleteFunc(l.gone, func(a netip.Addr, _ bool) bool { _, still := seen[a]; return !still })
	maps.DeleteFunc(l.foreign, func(a netip.Addr, f foreign) bool {
		s, read := seen[a]
		return read && !s.before(f.claim) || time.Now().After(f.until)
	})
}

// all returns all claims, those of others too. What was released and is still read is among
// them: it is nobody's soon.
func (l *ledger) all() pool.Claims {
	all := pool.Claims{}
	for a, c := range l.seen {
		all[a] = c.holders
	}
	for a := range l.gone {
		all[a] = pool.Holders{{}}
	}
	for a, f := range l.foreign {
		all[a] = f.holders
	}
	for a, c := range l.made {
		all[a] = c.holders
	}
	return all
}

// claimed is what became of claims.
type claimed struct {
	taken map[pool.Share]string // those that were not to be had, and why
	err   error                 // why it is to be tried again
}

// make claims addresses.
func (l *ledger) make(ctx context.Context, claims pool.Claims) claimed {
	result := claimed{taken: map[pool.Share]string{}}
	had := l.all()
	for address, holders := range claims {
		made, err := l.claim(ctx, address, holders, len(had[address]) > 0)
		if err == nil {
			l.made[address] = made
			continue
		}
		var other *foreignError
		isForeign := errors.As(err, &other)
		if isForeign {
			l.foreign[address] = foreign{claim: other.claim, until: time.Now().Add(forget)}
		}
		for _, h := range holders {
			// Who has it already, and wants other ports of it, is not to lose it because the
			// API server does not answer.
			if _, has := had[address].Of(h.Service); !has || isForeign {
				result.taken[pool.Share{Address: address, Service: h.Service}] = err.Error()
			}
			result.err = errors.Join(result.err, fmt.Errorf("claim %s for %s: %w", address, h.Service, err))
		}
	}
	return result
}

// claim makes or changes the object that says whose an address is. If there is one that says
// the same, it was made by this process or one before it.
func (l *ledger) claim(ctx context.Context, address netip.Addr, holders pool.Holders, known bool) (none claim, err error) {
	if !known {
		first := holders[0]
		a := &networkingv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{Name: address.String(), Labels: map[string]string{networkingv1.LabelManagedBy: managedBy}},
			Spec:       networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: first.Namespace, Name: first.Name}},
		}
		if err := write(a, holders); err != nil {
			return none, err
		}
		made, err := l.client.Create(ctx, a, metav1.CreateOptions{})
		if err == nil {
			return claim{holders, made.ResourceVersion}, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return none, err
		}
	}
	there, err := l.client.Get(ctx, address.String(), metav1.GetOptions{})
	if err != nil {
		return none, err
	}
	has := claimOf(there)
	want, changed, refused := has.with(holders, there.Labels[networkingv1.LabelManagedBy])
	switch {
	case refused != nil:
		return none, refused
	case !changed:
		return has, nil
	}
	return l.replace(ctx, there, want)
}

// replace writes who has an address, where nobody has written since it was read.
func (l *ledger) replace(ctx context.Context, there *networkingv1.IPAddress, holders pool.Holders) (none claim, err error) {
	there = there.DeepCopy()
	if err := write(there, holders); err != nil {
		return none, err
	}
	made, err := l.client.Update(ctx, there, metav1.UpdateOptions{})
	if err != nil {
		return none, err
	}
	return claim{holders, made.ResourceVersion}, nil
}

// release removes claims that nobody needs, once the API server itself, and not what was
// read of it some time ago, says so of their Services.
func (c *Controller) release(ctx context.Context, shares []pool.Share) error {
	var errs []error
	for _, s := range shares {
		if _, known := c.claims.seen[s.Address]; !known || c.claims.gone[s.Address] {
			continue
		}
		if err := c.releaseOne(ctx, s.Address, s.Service); err != nil {
			errs = append(errs, fmt.Errorf("release %s of %s: %w", s.Address, s.Service, err))
		}
	}
	return errors.Join(errs...)
}

func (c *Controller) releaseOne(ctx context.Context, a netip.Addr, owner pool.Service) error {
	now, err := c.core.Services(owner.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if read := c.cache.service(owner); err == nil && c.isOurs(now) && (read == nil || !sameWish(read, now)) {
		return errors.New("what was read of the Service is too old to judge by")
	}
	there, err := c.addresses.Get(ctx, a.String(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	has := claimOf(there)
	if _, is := has.holders.Of(owner); !is || there.Labels[networkingv1.LabelManagedBy] != managedBy {
		return nil
	}
	if rest := has.holders.Without(owner); len(rest) > 0 {
		made, err := c.claims.replace(ctx, there, rest)
		if err != nil {
			return err
		}
		c.claims.made[a] = made
		c.log.Info("a Service shares an address no more", "address", a, "service", owner.String())
		return nil
	}
	precondition := metav1.Preconditions{UID: &there.UID, ResourceVersion: &there.ResourceVersion}
	err = c.addresses.Delete(ctx, a.String(), metav1.DeleteOptions{Preconditions: &precondition})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	c.claims.gone[a] = true
	delete(c.claims.made, a)
	c.log.Info("released an address", "address", a, "service", owner.String())
	return nil
}

// sameWish reports whether two versions of a Service ask for the same addresses.
func sameWish(a, b *corev1.Service) bool {
	x, _ := translate.Wants(a)
	y, _ := translate.Wants(b)
	return x.Pool == y.Pool && x.Key == y.Key && fmt.Sprint(x.Wanted, x.Families, x.Ports) == fmt.Sprint(y.Wanted, y.Families, y.Ports)
}
