package pebblestore

import (
	"context"
	"fmt"

	"github.com/turnlane/turnlane/store"
)

// owner is a stored owner record, without the worker's name and without Live, which is computed.
type owner struct {
	session, pod  string
	token         uint64
	state, reason string
}

func (o *owner) encode() []byte {
	w := newWriter(64)
	w.text(o.session)
	w.text(o.pod)
	w.uint(o.token)
	w.text(o.state)
	w.text(o.reason)
	return w.seal()
}

func decodeOwner(value []byte) (owner, error) {
	r := open(value)
	o := owner{session: r.text(), pod: r.text(), token: r.uint(), state: r.text(), reason: r.text()}
	return o, r.done()
}

// show returns the record as callers see it.
func (s *Store) show(worker string, o owner) store.Owner {
	_, live := s.sessions.alive(o.session)
	return store.Owner{
		Worker: worker, Session: o.session, Pod: o.pod, Token: o.token,
		State: o.state, Reason: o.reason, Live: live,
	}
}

func (s *Store) readOwner(worker string) (owner, error) {
	value, err := s.get(named(spaceOwner, worker))
	if err != nil || value == nil {
		return owner{}, err
	}
	o, err := decodeOwner(value)
	if err != nil {
		return owner{}, corrupt(err, "the owner record of worker %q", worker)
	}
	return o, nil
}

// owner returns a record as decided so far, zero for a worker never owned.
func (c *committer) owner(worker string) (owner, error) {
	if o, ok := c.owners.get(worker); ok {
		return o, nil
	}
	o, err := c.s.readOwner(worker)
	if err == nil {
		c.owners.put(worker, o)
	}
	return o, err
}

func (c *committer) setOwner(worker string, o owner) {
	c.group.rows = true
	c.owners.put(worker, o)
	c.set(named(spaceOwner, worker), o.encode())
}

func checkWorker(worker string) error {
	if !nameable(worker) {
		return fmt.Errorf("worker name of %d bytes: want 1 to %d", len(worker), maxName)
	}
	return nil
}

// Acquire makes the session own the worker, with the next token.
func (s *Store) Acquire(ctx context.Context, worker, session string) (store.Owner, error) {
	if err := checkWorker(worker); err != nil {
		return store.Owner{}, fmt.Errorf("acquire: %w", err)
	}
	op := &acquireOp{worker: worker, session: session}
	if err := s.submit(ctx, op); err != nil {
		return op.out, fmt.Errorf("acquire %s: %w", worker, err)
	}
	return op.out, nil
}

type acquireOp struct {
	ticket
	worker, session string
	out             store.Owner
}

func (*acquireOp) grows() bool    { return true }
func (*acquireOp) publish(*Store) {}

func (op *acquireOp) stage(c *committer) {
	info, live := c.s.sessions.alive(op.session)
	if !live {
		op.err = store.ErrSessionExpired
		return
	}
	o, err := c.owner(op.worker)
	if err != nil {
		op.err = err
		return
	}
	if o.session != op.session {
		if now := c.s.show(op.worker, o); now.Live {
			op.out, op.err = now, store.ErrOwned
			return
		}
	}
	o.session, o.pod = op.session, info.Pod
	o.token++
	c.setOwner(op.worker, o)
	op.out = store.Owner{
		Worker: op.worker, Session: o.session, Pod: o.pod, Token: o.token,
		State: o.state, Reason: o.reason, Live: true,
	}
}

// Release gives a worker up.
func (s *Store) Release(ctx context.Context, o store.Owner) error {
	if err := checkWorker(o.Worker); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	if err := s.submit(ctx, &releaseOp{owner: o}); err != nil {
		return fmt.Errorf("release %s: %w", o.Worker, err)
	}
	return nil
}

type releaseOp struct {
	ticket
	owner store.Owner
}

func (*releaseOp) grows() bool    { return false }
func (*releaseOp) publish(*Store) {}

func (op *releaseOp) stage(c *committer) {
	o, err := c.owner(op.owner.Worker)
	switch {
	case err != nil:
		op.err = err
		return
	case o.session == "" || o.session != op.owner.Session || o.token != op.owner.Token:
		op.err = fmt.Errorf("%w: token %d, the record has %d", store.ErrStaleToken, op.owner.Token, o.token)
		return
	}
	o.session = ""
	c.setOwner(op.owner.Worker, o)
}

// Owner returns the record of a worker.
func (s *Store) Owner(ctx context.Context, worker string) (store.Owner, error) {
	list, err := s.Owners(ctx, []string{worker})
	if err != nil {
		return store.Owner{}, err
	}
	return list[0], nil
}

// Owners returns the records of many workers, zero for those never owned.
func (s *Store) Owners(ctx context.Context, workers []string) ([]store.Owner, error) {
	if err := s.begin(); err != nil {
		return nil, fmt.Errorf("owners: %w", err)
	}
	defer s.life.RUnlock()
	list := make([]store.Owner, len(workers))
	for i, worker := range workers {
		o, err := s.readOwner(worker)
		if err != nil {
			return nil, fmt.Errorf("owner of %s: %w", worker, err)
		}
		if o != (owner{}) {
			list[i] = s.show(worker, o)
		}
	}
	if err := s.synced.wait(ctx); err != nil {
		return nil, fmt.Errorf("owners: %w", err)
	}
	return list, nil
}

// Lead makes the session leader of name if nobody live is.
func (s *Store) Lead(ctx context.Context, name, session string) (store.Leader, error) {
	if !nameable(name) {
		return store.Leader{}, fmt.Errorf("lead: name of %d bytes: want 1 to %d", len(name), maxName)
	}
	op := &leadOp{name: name, session: session}
	if err := s.submit(ctx, op); err != nil {
		return store.Leader{}, fmt.Errorf("lead %s: %w", name, err)
	}
	return op.out, nil
}

type leadOp struct {
	ticket
	name, session string
	out           store.Leader
}

func (*leadOp) grows() bool    { return true }
func (*leadOp) publish(*Store) {}

func (op *leadOp) stage(c *committer) {
	if _, live := c.s.sessions.alive(op.session); !live {
		op.err = store.ErrSessionExpired
		return
	}
	l, err := c.leader(op.name)
	if err != nil {
		op.err = err
		return
	}
	if l.Session != op.session {
		if _, live := c.s.sessions.alive(l.Session); !live {
			l = store.Leader{Session: op.session, Token: l.Token + 1}
			w := newWriter(40)
			w.text(l.Session)
			w.uint(l.Token)
			c.group.rows = true
			c.leaders.put(op.name, l)
			c.set(named(spaceLeader, op.name), w.seal())
		}
	}
	op.out = l
}

func (c *committer) leader(name string) (store.Leader, error) {
	if l, ok := c.leaders.get(name); ok {
		return l, nil
	}
	value, err := c.s.get(named(spaceLeader, name))
	if err != nil || value == nil {
		return store.Leader{}, err
	}
	r := open(value)
	l := store.Leader{Session: r.text(), Token: r.uint()}
	if err := r.done(); err != nil {
		return l, corrupt(err, "the leader lease %q", name)
	}
	c.leaders.put(name, l)
	return l, nil
}
