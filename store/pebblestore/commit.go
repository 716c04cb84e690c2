package pebblestore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/turnlane/turnlane/store"
)

const (
	// A batch is applied when it has this many bytes or operations, else when nothing more waits.
	maxBatchBytes = 1 << 20
	maxBatchOps   = 4096
	// maxInFlight groups may be applied and waiting for their sync while another is built. With more
	// the operations that wait for a slow disk would not be gathered into large groups.
	maxInFlight = 2
)

// group is what becomes durable in one step.
type group struct {
	seq   uint64
	ops   []operation
	batch *pebble.Batch
	// rows: it writes outside of the log, so readers of such rows wait for it.
	rows bool
	// touched are the topics that it holds in the cache.
	touched []*topic
}

// committer decides and applies every write. All of its fields are only used by its goroutine.
type committer struct {
	s        *Store
	counters counters
	counted  bool // the counters changed in this group

	group *group
	dirty []*topic // topics whose facts changed in this group
	next  uint64   // number of the group

	// changed holds the registry rows changed in this group: they are not in the database yet.
	changed map[string]row
	marks   cache[markKey, mark]
	owners  cache[string, owner]
	leaders cache[string, store.Leader]
	commits cache[string, lastCommit]

	logBytes uint64            // of all topics, in memory
	sizes    map[string]uint64 // bytes of each topic, in memory
	trimmed  uint64            // bytes deleted since the last flush
	cuts     []cut             // large ranges deleted since the last flush

	compactions sync.WaitGroup

	groups chan *group // to the syncer; nil when nothing is synced
}

func newCommitter(s *Store, start counters) *committer {
	c := &committer{s: s, counters: start, changed: map[string]row{}}
	c.marks.init(1 << 16)
	c.owners.init(1 << 14)
	c.leaders.init(1 << 10)
	c.commits.init(1 << 14)
	if s.opts.inMemory() {
		c.sizes = map[string]uint64{}
	}
	return c
}

// run takes and commits operations until the queue is closed and empty.
func (c *committer) run() {
	var syncer sync.WaitGroup
	if c.s.opts.Fsync == Always && !c.s.opts.inMemory() {
		c.groups = make(chan *group, maxInFlight-1)
		syncer.Go(c.sync)
	}
	c.begin()
	var ops, spare []operation
	for {
		var ok bool
		if ops, ok = c.s.queue.take(spare); !ok {
			break
		}
		c.s.space.wrote(0)
		for i, op := range ops {
			ops[i] = nil
			if !op.base().state.CompareAndSwap(queued, taken) {
				continue
			}
			c.one(op)
			if c.group.batch.Len() >= maxBatchBytes || len(c.group.ops) >= maxBatchOps {
				c.settle()
			}
		}
		c.settle()
		c.shrink()
		spare = ops
	}
	if c.groups != nil {
		close(c.groups)
	}
	syncer.Wait()
	c.compactions.Wait()
	must(c.group.batch.Close())
}

func (c *committer) begin() {
	c.next++
	c.group = &group{seq: c.next, batch: c.s.db.NewBatch()}
}

// one stages one operation, unless it can't be written.
func (c *committer) one(op operation) {
	if err := c.s.health.fatal(); err != nil {
		op.base().err = err
	} else if err := c.s.space.err(); err != nil && op.grows() {
		op.base().err = err
	} else {
		op.stage(c)
	}
	c.group.ops = append(c.group.ops, op)
}

// settle applies what was staged, so that the database has it, and passes it on to be published.
func (c *committer) settle() {
	g := c.group
	if len(g.ops) == 0 && g.batch.Empty() {
		return
	}
	for _, t := range c.dirty {
		t.dirty = false
		c.set(named(spaceTopic, t.name), t.c.encode())
	}
	c.dirty = c.dirty[:0]
	if c.counted {
		c.set(counterKey, c.counters.encode())
		c.counted = false
	}
	if g.rows {
		c.s.synced.expect(g.seq)
	}
	bytes := g.batch.Len()
	err := c.s.guard(func() error { return c.apply(g) })
	if err != nil {
		c.s.health.die(fmt.Errorf("write: %w", err))
	}
	clear(c.changed)
	c.s.space.wrote(bytes)
	c.begin()
	if c.groups != nil {
		c.groups <- g
	} else {
		c.s.finish(g, c.s.health.fatal())
	}
}

func (c *committer) apply(g *group) error {
	switch {
	case c.s.health.fatal() != nil:
		return c.s.health.fatal()
	case g.batch.Empty():
		return nil
	case c.groups != nil:
		return c.s.db.ApplyNoSyncWait(g.batch, pebble.Sync)
	}
	return c.s.db.Apply(g.batch, pebble.NoSync)
}

// sync waits for each group's sync and publishes it.
func (c *committer) sync() {
	for g := range c.groups {
		err := c.s.health.fatal()
		if err == nil && !g.batch.Empty() {
			if err = g.batch.SyncWait(); err != nil {
				c.s.health.die(fmt.Errorf("sync the log: %w", err))
			}
		}
		c.s.finish(g, err)
	}
}

// finish publishes a durable group and answers its callers. With an error nobody knows what is on disk.
func (s *Store) finish(g *group, err error) {
	if err == nil {
		err = s.health.fatal()
	}
	if err == nil {
		for _, op := range g.ops {
			op.publish(s)
		}
		must(g.batch.Close())
	}
	for _, t := range g.touched {
		t.holds.Add(-1)
	}
	s.synced.reach(g.seq)
	for _, op := range g.ops {
		t := op.base()
		if err != nil && t.err == nil {
			t.err = fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, err)
		}
		t.done <- struct{}{}
	}
}

// shrink gives memory back between two groups, when the database has all that the caches have.
func (c *committer) shrink() {
	c.marks.shrink()
	c.owners.shrink()
	c.leaders.shrink()
	c.commits.shrink()
	c.s.topics.shrink(c.s)
	c.flushTrimmed()
}

// The errors of staging go into the memory of the batch: Pebble's batch can't fail on plain writes.

func (c *committer) set(key, value []byte) { must(c.group.batch.Set(key, value, nil)) }
func (c *committer) delete(key []byte)     { must(c.group.batch.Delete(key, nil)) }

func (c *committer) deleteRange(lower, upper []byte) {
	must(c.group.batch.DeleteRange(lower, upper, nil))
}

func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("pebblestore: staging a write: %v", err))
	}
}

// hold keeps a topic in the cache until the group is published.
func (c *committer) hold(t *topic) {
	t.holds.Add(1)
	c.group.touched = append(c.group.touched, t)
}

// touch notes that a topic's facts changed.
func (c *committer) touch(t *topic) {
	if !t.dirty {
		t.dirty = true
		c.dirty = append(c.dirty, t)
		c.hold(t)
	}
}

// progress tells readers of rows when what they read is durable.
type progress struct {
	rows atomic.Uint64 // the newest group with rows that may be in the database
	done atomic.Uint64 // all groups up to here are durable

	waiting atomic.Int64
	mu      sync.Mutex
	waits   []progressWait
}

type progressWait struct {
	seq  uint64
	done chan struct{}
}

func (p *progress) expect(seq uint64) { p.rows.Store(seq) }
func (p *progress) reached() uint64   { return p.done.Load() }

func (p *progress) reach(seq uint64) {
	p.done.Store(seq)
	if p.waiting.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.waits[:0]
	for _, w := range p.waits {
		if w.seq <= seq {
			close(w.done)
		} else {
			kept = append(kept, w)
		}
	}
	p.waits = kept
}

// wait returns when all rows that were in the database at the call are durable. Call it after reading.
//
// Why no wake-up is lost: wait counts itself, then looks at done; reach stores done, then looks at the
// count. One of them sees the other.
func (p *progress) wait(ctx context.Context) error {
	seq := p.rows.Load()
	if p.done.Load() >= seq {
		return nil
	}
	p.waiting.Add(1)
	defer p.waiting.Add(-1)
	p.mu.Lock()
	if p.done.Load() >= seq {
		p.mu.Unlock()
		return nil
	}
	w := progressWait{seq, make(chan struct{})}
	p.waits = append(p.waits, w)
	p.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", store.ErrUnavailable, context.Cause(ctx))
	}
}
