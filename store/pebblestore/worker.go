package pebblestore

import (
	"bytes"
	"context"
	"fmt"

	"github.com/turnlane/turnlane/store"
)

// head is the start that a worker's cursors belong to, and whether it ended in order.
type head struct {
	start    store.Start
	handover bool
}

func (h head) encode() []byte {
	w := newWriter(24)
	w.uint(h.start.Run)
	w.uint(h.start.Generation)
	w.flag(h.handover)
	return w.seal()
}

func decodeHead(value []byte) (head, error) {
	r := open(value)
	h := head{start: store.Start{Run: r.uint(), Generation: r.uint()}, handover: r.flag()}
	return h, r.done()
}

// lastCommit is what the committer knows of a worker's data.
type lastCommit struct {
	head
	stored bool   // it has data
	group  uint64 // the newest group that writes any of it
}

// lastCommit returns what has been decided so far of a worker's data.
func (c *committer) lastCommit(worker string) (lastCommit, error) {
	if l, ok := c.commits.get(worker); ok {
		return l, nil
	}
	value, err := c.s.get(workerKey(worker, kindHead))
	if err != nil {
		return lastCommit{}, err
	}
	l := lastCommit{stored: value != nil}
	if l.stored {
		if l.head, err = decodeHead(value); err != nil {
			return lastCommit{}, corrupt(err, "the start of worker %q", worker)
		}
	}
	c.commits.put(worker, l)
	return l, nil
}

func olderStart(a, b store.Start) bool {
	return a.Run < b.Run || a.Run == b.Run && a.Generation < b.Generation
}

// Commit applies each commit in one atomic step of its own.
func (s *Store) Commit(ctx context.Context, commits []store.Commit) ([]error, error) {
	for _, x := range commits {
		if err := checkCommit(&x); err != nil {
			return nil, fmt.Errorf("commit of %q: %w", x.Owner.Worker, err)
		}
	}
	op := &commitOp{commits: commits, errs: make([]error, len(commits))}
	if len(commits) == 0 {
		return op.errs, nil
	}
	if err := s.submit(ctx, op); err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	return op.errs, nil
}

func checkCommit(x *store.Commit) error {
	if err := checkWorker(x.Owner.Worker); err != nil {
		return err
	}
	for _, c := range x.Cursors {
		if !nameable(c.Topic) {
			return fmt.Errorf("a cursor's topic name has %d bytes: want 1 to %d", len(c.Topic), maxName)
		}
	}
	for _, a := range x.Attempts {
		if !nameable(a.Topic) {
			return fmt.Errorf("an attempt's topic name has %d bytes: want 1 to %d", len(a.Topic), maxName)
		}
	}
	for _, st := range x.State {
		if len(st.Key) > maxName {
			return fmt.Errorf("a state key has %d bytes: want at most %d", len(st.Key), maxName)
		}
	}
	return nil
}

type commitOp struct {
	ticket
	commits []store.Commit
	errs    []error
}

func (*commitOp) grows() bool    { return true }
func (*commitOp) publish(*Store) {}

func (op *commitOp) stage(c *committer) {
	// What has to be looked up is looked up first: an error of the call means that none was applied.
	var wipes map[string]wipe // of what is stored of the workers that have begun anew
	for i := range op.commits {
		x := &op.commits[i]
		worker := x.Owner.Worker
		if _, op.err = c.owner(worker); op.err != nil {
			return
		}
		var l lastCommit
		if l, op.err = c.lastCommit(worker); op.err != nil {
			return
		}
		if !l.stored || !olderStart(l.start, x.Start) {
			continue
		}
		if wipes == nil {
			wipes = make(map[string]wipe)
		}
		if wipes[worker], op.err = c.wipe(worker, l, kindCursor, kindAttempt); op.err != nil {
			return
		}
	}
	for i := range op.commits {
		x := &op.commits[i]
		if op.errs[i] = c.commit(x, wipes[x.Owner.Worker]); op.errs[i] != nil {
			op.errs[i] = fmt.Errorf("commit of %s: %w", x.Owner.Worker, op.errs[i])
		}
	}
}

// commit stages one commit, if its owner and start are the worker's. All lookups are in the caches; old
// are the worker's cursors and attempts, if it begins anew and nothing of it was staged before.
func (c *committer) commit(x *store.Commit, old wipe) error {
	worker := x.Owner.Worker
	o, _ := c.owners.get(worker)
	if o.session == "" || o.session != x.Owner.Session || o.token != x.Owner.Token {
		return fmt.Errorf("%w: token %d, the record has %d", store.ErrStaleToken, x.Owner.Token, o.token)
	}
	if _, live := c.s.sessions.alive(o.session); !live {
		return fmt.Errorf("%w: %s", store.ErrSessionExpired, o.session)
	}
	l, _ := c.commits.get(worker)
	if olderStart(x.Start, l.start) {
		return fmt.Errorf("%w: start %d.%d, stored is %d.%d", store.ErrStaleToken,
			x.Start.Run, x.Start.Generation, l.start.Run, l.start.Generation)
	}
	c.group.rows = true
	if olderStart(l.start, x.Start) {
		if l.group == c.group.seq {
			old, _ = c.wipe(worker, l, kindCursor, kindAttempt) // a range: it reads nothing
		}
		c.stageWipe(old)
	}
	next := lastCommit{head: head{x.Start, x.Handover}, stored: true, group: c.group.seq}
	if !l.stored || next.head != l.head {
		c.set(workerKey(worker, kindHead), next.encode())
	}
	if next != l {
		c.commits.put(worker, next)
	}
	if x.Owner.State != "" || x.Owner.Reason != "" {
		was := o
		if x.Owner.State != "" {
			o.state = x.Owner.State
		}
		if o.reason = x.Owner.Reason; o != was {
			c.setOwner(worker, o)
		}
	}
	for _, cur := range x.Cursors {
		w := newWriter(40)
		w.text(cur.Incarnation)
		w.position(cur.Position)
		c.set(append(workerKey(worker, kindCursor), cur.Topic...), w.seal())
	}
	for i := range x.Attempts {
		a := &x.Attempts[i]
		key := attemptKey(worker, a.Topic, a.Position)
		if a.Attempts == 0 && a.Crashes == 0 && !a.Started {
			c.delete(key)
		} else {
			c.set(key, encodeAttempt(a))
		}
	}
	for _, st := range x.State {
		key := append(workerKey(worker, kindState), st.Key...)
		if st.Delete {
			c.delete(key)
		} else {
			w := newWriter(5 + len(st.Value))
			w.bytes(st.Value)
			c.set(key, w.seal())
		}
	}
	return nil
}

func encodeAttempt(a *store.Attempt) []byte {
	w := newWriter(64 + len(a.Error))
	w.uint(uint64(a.Attempts))
	w.uint(uint64(a.Crashes))
	w.flag(a.Started)
	w.time(a.FirstFailed)
	w.time(a.LastFailed)
	w.text(a.Error)
	if a.GivenUp != "" {
		w.text(a.GivenUp)
	}
	return w.seal()
}

func decodeAttempt(key, value []byte) (store.Attempt, error) {
	n := len(key) - positionLen
	if n < 0 {
		return store.Attempt{}, errGarbled
	}
	r := open(value)
	a := store.Attempt{
		Topic:       string(key[:n]),
		Position:    getPosition(key[n:]),
		Attempts:    uint32(r.uint()),
		Crashes:     uint32(r.uint()),
		Started:     r.flag(),
		FirstFailed: r.time(),
		LastFailed:  r.time(),
		Error:       r.text(),
	}
	if len(r.b) > 0 { // not there before it is given up
		a.GivenUp = r.text()
	}
	return a, r.done()
}

// Load returns what the commits of a worker left: cursors and attempts in the order of their topics.
func (s *Store) Load(ctx context.Context, worker string) (store.WorkerData, error) {
	if err := s.begin(); err != nil {
		return store.WorkerData{}, fmt.Errorf("load %s: %w", worker, err)
	}
	defer s.life.RUnlock()
	var data workerData
	prefix := workerKey(worker, 0)
	prefix = prefix[:len(prefix)-1]
	err := s.scan(ctx, prefix, nil, func(key, value []byte) (bool, error) {
		rest := key[len(prefix):]
		if len(rest) == 0 {
			return false, corrupt(errGarbled, "a key of worker %q", worker)
		}
		err := data.add(rest[0], rest[1:], value)
		if err != nil {
			return false, corrupt(err, "the data of worker %q, kind %d, %q", worker, rest[0], rest[1:])
		}
		return true, nil
	})
	if err == nil {
		err = s.synced.wait(ctx)
	}
	if err != nil {
		return store.WorkerData{}, fmt.Errorf("load %s: %w", worker, err)
	}
	return data.WorkerData, nil
}

// workerData is what Load collects.
type workerData struct{ store.WorkerData }

// add takes one stored value, of which it keeps nothing.
func (d *workerData) add(kind byte, name, value []byte) error {
	switch kind {
	case kindHead:
		h, err := decodeHead(value)
		d.Start, d.Handover = h.start, h.handover
		return err
	case kindCursor:
		r := open(value)
		c := store.Cursor{Topic: string(name), Incarnation: r.text(), Position: r.position()}
		d.Cursors = append(d.Cursors, c)
		return r.done()
	case kindAttempt:
		a, err := decodeAttempt(name, value)
		d.Attempts = append(d.Attempts, a)
		return err
	case kindState:
		r := open(value)
		state := bytes.Clone(r.bytes())
		if d.State == nil {
			d.State = map[string][]byte{}
		}
		d.State[string(name)] = state
		return r.done()
	}
	return nil // of a later version
}
