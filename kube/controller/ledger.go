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
// whose name it is: there can be but one, so no two processes ever give it to two Services,
// whatever they have not seen of each other. What this process has written and not yet read
// back is remembered here.
type ledger struct {
	client  networkingv1client.IPAddressInterface
	seen    pool.Claims
	made    pool.Claims
	gone    map[netip.Addr]bool
	foreign map[netip.Addr]foreign
}

type foreign struct {
	whose pool.Service
	why   string
	until time.Time
}

func newLedger(client networkingv1client.IPAddressInterface) ledger {
	return ledger{client: client, made: pool.Claims{}, gone: map[netip.Addr]bool{}, foreign: map[netip.Addr]foreign{}}
}

// read takes what there is.
func (l *ledger) read(seen pool.Claims) {
	l.seen = seen
	for a := range seen {
		delete(l.made, a)
	}
	maps.DeleteFunc(l.gone, func(a netip.Addr, _ bool) bool { _, still := seen[a]; return !still })
	maps.DeleteFunc(l.foreign, func(_ netip.Addr, f foreign) bool { return time.Now().After(f.until) })
}

// all returns all claims, those of others too. What was released and is still read is among
// them: it is nobody's soon.
func (l *ledger) all() pool.Claims {
	all := maps.Clone(l.seen)
	if all == nil {
		all = pool.Claims{}
	}
	for a := range l.gone {
		all[a] = pool.Service{}
	}
	for a, f := range l.foreign {
		all[a] = f.whose
	}
	maps.Copy(all, l.made)
	return all
}

// claimed is what became of claims.
type claimed struct {
	taken map[netip.Addr]string // those that were not to be had, and why
	err   error                 // why it is to be tried again
}

// make claims addresses.
func (l *ledger) make(ctx context.Context, claims pool.Claims, services []*corev1.Service) claimed {
	result := claimed{taken: map[netip.Addr]string{}}
	for address, service := range claims {
		err := l.claim(ctx, address, service)
		var other *foreignError
		switch {
		case err == nil:
			l.made[address] = service
		case errors.As(err, &other):
			l.foreign[address] = foreign{whose: other.whose, why: other.Error(), until: time.Now().Add(forget)}
			fallthrough
		default:
			result.taken[address] = err.Error()
			result.err = errors.Join(result.err, fmt.Errorf("claim %s for %s: %w", address, service, err))
		}
	}
	return result
}

// foreignError says whose an address is.
type foreignError struct {
	whose pool.Service
	by    string
}

func (e *foreignError) Error() string {
	if e.by == "" {
		return fmt.Sprintf("it belongs to %s", e.whose)
	}
	return fmt.Sprintf("it belongs to %s, says %s", e.whose, e.by)
}

// claim makes the object that says whose an address is. If there is one that says the same,
// it was made by this process or one before it.
func (l *ledger) claim(ctx context.Context, address netip.Addr, service pool.Service) error {
	_, err := l.client.Create(ctx, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: address.String(), Labels: map[string]string{networkingv1.LabelManagedBy: managedBy}},
		Spec:       networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: service.Namespace, Name: service.Name}},
	}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	there, err := l.client.Get(ctx, address.String(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	by := there.Labels[networkingv1.LabelManagedBy]
	if owner := parentOf(there); owner != service || by != managedBy {
		return &foreignError{whose: owner, by: by}
	}
	return nil
}

// parentOf returns whose an address is.
func parentOf(a *networkingv1.IPAddress) pool.Service {
	if p := a.Spec.ParentRef; p != nil {
		return pool.Service{Namespace: p.Namespace, Name: p.Name}
	}
	return pool.Service{}
}

// release removes claims that nobody needs, once the API server itself, and not what was
// read of it some time ago, says so of their Services.
func (c *Controller) release(ctx context.Context, addresses []netip.Addr) error {
	var errs []error
	for _, a := range addresses {
		owner, known := c.claims.seen[a]
		if !known || c.claims.gone[a] {
			continue
		}
		if err := c.releaseOne(ctx, a, owner); err != nil {
			errs = append(errs, fmt.Errorf("release %s of %s: %w", a, owner, err))
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
	claim := c.cache.claim(a)
	if claim == nil {
		return nil
	}
	err = c.addresses.Delete(ctx, a.String(), metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(claim.UID))})
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
	return x.Pool == y.Pool && fmt.Sprint(x.Wanted, x.Families) == fmt.Sprint(y.Wanted, y.Families)
}
