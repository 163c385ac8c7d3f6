package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"

	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

// managedBy is the value of the label ipaddress.kubernetes.io/managed-by of weir's claims.
const managedBy = "weir.io"

// forget is how long the ledger remembers that an address belongs to another holder.
const forget = time.Minute

// ledger has the holders of each address. An address is claimed by an object of kind IPAddress with
// the address as its name: there can be only one, and only a process that has read it can replace
// it. So two processes never give an address to two Services that cannot share it, whatever they
// have not seen of each other. The ledger remembers what this process has written and not yet read
// back.
type ledger struct {
	client networkingv1client.IPAddressInterface

	mu      sync.Mutex
	seen    map[netip.Addr]claim
	made    map[netip.Addr]claim
	gone    map[netip.Addr]bool
	foreign map[netip.Addr]foreign
	changed map[netip.Addr]bool // since news was last asked for
}

type foreign struct {
	claim
	until time.Time
}

func newLedger(client networkingv1client.IPAddressInterface) *ledger {
	return &ledger{client: client, seen: map[netip.Addr]claim{}, made: map[netip.Addr]claim{}, gone: map[netip.Addr]bool{},
		foreign: map[netip.Addr]foreign{}, changed: map[netip.Addr]bool{}}
}

// see takes in the claim that was read for an address; without read there is none.
func (l *ledger) see(a netip.Addr, c claim, read bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed[a] = true
	if !read {
		delete(l.seen, a)
		delete(l.gone, a)
		return
	}
	l.seen[a] = c
	if m, is := l.made[a]; is && !c.before(m) {
		delete(l.made, a)
	}
	if f, is := l.foreign[a]; is && !c.before(f.claim) {
		delete(l.foreign, a)
	}
}

// news returns the addresses whose holders may have changed since it was last called.
func (l *ledger) news(now time.Time) map[netip.Addr]pool.Holders {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a, f := range l.foreign {
		if now.After(f.until) {
			delete(l.foreign, a)
			l.changed[a] = true
		}
	}
	news := make(map[netip.Addr]pool.Holders, len(l.changed))
	for a := range l.changed {
		news[a] = l.of(a)
	}
	clear(l.changed)
	return news
}

// of returns the holders of an address. A released claim that is still read has an empty holder: the
// address is taken, but will soon be free.
func (l *ledger) of(a netip.Addr) pool.Holders {
	if made, is := l.made[a]; is {
		return made.holders
	}
	if f, is := l.foreign[a]; is {
		return f.holders
	}
	if l.gone[a] {
		return pool.Holders{{}}
	}
	return l.seen[a].holders
}

// note changes what is remembered about an address.
func (l *ledger) note(a netip.Addr, f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed[a] = true
	f()
}

// claimed is the outcome of claims.
type claimed struct {
	taken map[pool.Share]string // claims that could not be made, and why
	err   error                 // why the claims have to be tried again
}

// make claims addresses, several at a time.
func (l *ledger) make(ctx context.Context, claims pool.Claims) claimed {
	result := claimed{taken: map[pool.Share]string{}}
	var mu sync.Mutex
	result.err = each(slices.Collect(maps.Keys(claims)), func(address netip.Addr) error {
		l.mu.Lock()
		had := l.of(address)
		l.mu.Unlock()
		made, err := l.claim(ctx, address, claims[address], len(had) > 0)
		if err == nil {
			l.note(address, func() { l.made[address] = made })
			return nil
		}
		var other *foreignError
		isForeign := errors.As(err, &other)
		if isForeign {
			l.note(address, func() { l.foreign[address] = foreign{claim: other.claim, until: time.Now().Add(forget)} })
		}
		mu.Lock()
		defer mu.Unlock()
		var errs []error
		for _, h := range claims[address] {
			// A Service that has the address already, and wants other ports of it, must not lose it
			// because the API server does not answer.
			if _, has := had.Of(h.Service); !has || isForeign {
				result.taken[pool.Share{Address: address, Service: h.Service}] = err.Error()
			}
			errs = append(errs, fmt.Errorf("claim %s for %s: %w", address, h.Service, err))
		}
		return errors.Join(errs...)
	})
	return result
}

// claim makes or changes the object that names the holders of an address. If an object says the same
// already, this process or an earlier one made it.
func (l *ledger) claim(ctx context.Context, address netip.Addr, holders pool.Holders, known bool) (none claim, err error) {
	if !known {
		a := &networkingv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{Name: address.String(), Labels: map[string]string{networkingv1.LabelManagedBy: managedBy}},
			Spec:       networkingv1.IPAddressSpec{ParentRef: parentRef(holders[0].Service)},
		}
		if err := write(a, holders); err != nil {
			return none, err
		}
		made, err := l.client.Create(ctx, a, metav1.CreateOptions{})
		if err == nil {
			return claim{holders: holders, version: made.ResourceVersion}, nil
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
	by := there.Labels[networkingv1.LabelManagedBy]
	unlabelled := by == "" && has.isOf(holders) // the label was removed from a claim of weir's
	if unlabelled {
		by = managedBy
	}
	want, changed, refused := has.with(holders, by)
	switch {
	case refused != nil:
		return none, refused
	case !changed && (!unlabelled || has.newer):
		return has, nil
	}
	return l.replace(ctx, there, want)
}

// replace writes the holders of an address, unless its object has changed since it was read.
func (l *ledger) replace(ctx context.Context, there *networkingv1.IPAddress, holders pool.Holders) (none claim, err error) {
	there = there.DeepCopy()
	metav1.SetMetaDataLabel(&there.ObjectMeta, networkingv1.LabelManagedBy, managedBy)
	if err := write(there, holders); err != nil {
		return none, err
	}
	made, err := l.client.Update(ctx, there, metav1.UpdateOptions{})
	if err != nil {
		return none, err
	}
	return claim{holders: holders, version: made.ResourceVersion}, nil
}

// release removes claims that are not needed, once the API server itself says so about their
// Services: what was read some time ago is not enough.
func (c *Controller) release(ctx context.Context, shares []pool.Share) error {
	of := map[netip.Addr][]pool.Service{}
	for _, s := range shares {
		if c.claims.known(s.Address) {
			of[s.Address] = append(of[s.Address], s.Service)
		}
	}
	return each(slices.Collect(maps.Keys(of)), func(a netip.Addr) error {
		var errs []error
		for _, owner := range of[a] { // one by one: each replaces what the one before has written
			if err := c.releaseOne(ctx, a, owner); err != nil {
				errs = append(errs, fmt.Errorf("release %s of %s: %w", a, owner, err))
			}
		}
		return errors.Join(errs...)
	})
}

// known reports whether there is a claim of an address that was not released yet.
func (l *ledger) known(a netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, read := l.seen[a]
	return read && !l.gone[a]
}

func (c *Controller) releaseOne(ctx context.Context, a netip.Addr, owner pool.Service) error {
	judge := c.judgeService
	if owner.Kind == pool.Gateway {
		judge = c.judgeGateway
	}
	if err := judge(ctx, owner); err != nil {
		return err
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
	if has.newer {
		return errNewerClaim
	}
	if rest := has.holders.Without(owner); len(rest) > 0 {
		made, err := c.claims.replace(ctx, there, rest)
		if err != nil {
			return err
		}
		c.claims.note(a, func() { c.claims.made[a] = made })
		c.log.Info("a Service shares an address no more", "address", a, "service", owner.String())
		return nil
	}
	precondition := metav1.Preconditions{UID: &there.UID, ResourceVersion: &there.ResourceVersion}
	err = c.addresses.Delete(ctx, a.String(), metav1.DeleteOptions{Preconditions: &precondition})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	c.claims.note(a, func() {
		c.claims.gone[a] = true
		delete(c.claims.made, a)
	})
	c.log.Info("released an address", "address", a, "service", owner.String())
	return nil
}

// errTooOld is why no address of an owner that may want it is released.
var errTooOld = errors.New("what was read of its owner is too old to judge by")

// errNewerClaim is why a claim stays that is not needed here.
var errNewerClaim = errors.New("a newer version of weir has written the claim, and it says more than is known here; it stays until that version runs again")

// judgeService returns no error if the API server confirms what was read of a Service.
func (c *Controller) judgeService(ctx context.Context, owner pool.Service) error {
	now, err := c.core.Services(owner.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	if read := c.cache.service(owner); c.isOurs(now) && (read == nil || !sameWish(read, now)) {
		return errTooOld
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// sameWish reports whether two versions of a Service ask for the same addresses.
func sameWish(a, b *corev1.Service) bool {
	x, _ := translate.Wants(a)
	y, _ := translate.Wants(b)
	return x.Pool == y.Pool && x.Key == y.Key && fmt.Sprint(x.Wanted, x.Families, x.Ports) == fmt.Sprint(y.Wanted, y.Families, y.Ports)
}
