package workmanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/lifecycle"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// leaseName is the name of the leader's lease.
const leaseName = "workmanager"

// untold is how long before its term a leader takes changes for news: nobody led then, or stopped to. A
// few things may be told twice for it.
const untold = 2 * time.Second

// errDeposed ends a term: somebody else leads.
var errDeposed = errors.New("another workmanager leads")

// leader keeps an index of the catalog in memory, brings placements in line with what is wanted, and
// tells what became of workers. It follows the catalog by a bell and owners by looking at those in
// motion, so that a change costs the same however many workers there are.
//
// All of its fields are only used by the goroutine that calls lead.
type leader struct {
	*Manager
	session string       // that leads
	fence   store.Change // the condition that this is still the leader

	placer    *placer
	workers   map[string]*entry
	members   map[string]map[string]*entry // by group
	waiting   map[string]map[string]*entry // wanted without a host, by type
	reconcile map[string]*entry            // to be brought in line by place
	orphans   []string                     // keys of placements to be removed
	agenda    agenda
	ring      []*entry             // what is left of the round of the sweep
	graves    map[string]time.Time // deleted workers whose data is still there: when to try again
	broken    map[string]string    // keys of quarantined records, and what was reported

	dirty     map[string]string // groups whose coverage may have changed, and the member that did, "" for several
	reported  map[string]map[string]share
	gaps      map[gapKey]*gap
	gapWarned time.Time // when trouble with them was last told

	counts   map[kind]int
	changed  bool      // the gauges are out of date
	adopting bool      // the index is being filled for the first time
	since    time.Time // when adopting, records that changed after it are news
	stale    map[string]bool

	nextPoll, nextLook, nextSweep, nextResync time.Time
}

// lead takes part in leading until ctx ends.
func (m *Manager) lead(ctx context.Context) {
	l := &leader{Manager: m}
	l.reset()
	defer l.closeGaps()
	for ctx.Err() == nil {
		err := l.term(ctx)
		m.sightings.close()
		m.gauges.set(snapshot{})
		l.closeGaps()
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, errDeposed):
			l.reset()
		case err != nil:
			m.log.Warn("the workmanager's leader stops for a moment and reads the catalog again", "error", err)
		}
		_ = sleep(ctx, m.cfg.Poll)
	}
}

func (l *leader) reset() {
	*l = leader{
		Manager:   l.Manager,
		placer:    newPlacer(),
		workers:   map[string]*entry{},
		members:   map[string]map[string]*entry{},
		waiting:   map[string]map[string]*entry{},
		reconcile: map[string]*entry{},
		graves:    map[string]time.Time{},
		broken:    map[string]string{},
		dirty:     map[string]string{},
		reported:  map[string]map[string]share{},
		gaps:      map[gapKey]*gap{},
		counts:    map[kind]int{},
		stale:     map[string]bool{},
		adopting:  true,
	}
}

// term leads if this process can, until it can no longer (errDeposed) or the store fails. After a
// failure of the store the index stays, so that the next term sees what changed meanwhile.
func (l *leader) term(ctx context.Context) error {
	session, ok := l.cfg.Session.Current()
	if !ok {
		return errDeposed
	}
	lease, err := l.store.Lead(ctx, leaseName, session)
	if err != nil {
		return fmt.Errorf("lead: %w", err)
	}
	if lease.Session != session {
		return errDeposed
	}
	l.session, l.since = session, time.Now().Add(-untold)
	if err := l.enthrone(ctx, lease.Token); err != nil {
		return err
	}
	l.log.Info("leading the workmanagers", "session", session, "token", lease.Token)

	bell, err := l.store.WatchKeys(ctx, catalog.WorkerPrefix)
	if err != nil {
		return fmt.Errorf("watch the catalog: %w", err)
	}
	listening, stop := context.WithCancel(ctx)
	rung, lost, gone := make(chan []string), make(chan error, 1), make(chan struct{})
	go func() {
		defer close(gone)
		lost <- listen(listening, bell, rung)
	}()
	defer func() {
		stop()
		_ = bell.Close()
		<-gone
	}()

	l.sightings.open()
	if err := l.resync(ctx); err != nil {
		return err
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var keys []string
		select {
		case keys = <-rung:
		case <-l.sightings.ready:
		case <-timer.C:
		case err := <-lost:
			return fmt.Errorf("watch the catalog: %w", err)
		case <-ctx.Done():
			return nil
		}
		if err := l.cycle(ctx, keys); err != nil {
			return err
		}
		now := time.Now()
		timer.Reset(max(l.agenda.wait(now, l.cfg.Poll), l.nextLook.Sub(now)))
	}
}

// listen passes on what the bell tells until it fails or ctx ends. While the leader is busy, the bell
// gathers.
func listen(ctx context.Context, bell store.Bell, rung chan<- []string) error {
	for {
		keys, err := bell.Wait(ctx)
		if err != nil {
			return err
		}
		select {
		case rung <- keys:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// enthrone makes every later write of an earlier leader fail.
func (l *leader) enthrone(ctx context.Context, token uint64) error {
	item, err := l.store.Get(ctx, catalog.LeaderKey)
	condition := item.Revision
	switch {
	case errors.Is(err, store.ErrNotFound):
		condition = store.Absent
	case errors.Is(err, store.ErrCorrupt):
		condition = store.Any
	case err != nil:
		return fmt.Errorf("read the leader's fence: %w", err)
	default:
		if highest, err := strconv.ParseUint(string(item.Value), 10, 64); err == nil && highest > token {
			return errDeposed
		}
	}
	revisions, err := l.store.Txn(ctx, store.Change{
		Key: catalog.LeaderKey, Value: strconv.AppendUint(nil, token, 10), If: condition,
	})
	switch {
	case errors.Is(err, store.ErrConflict):
		return errDeposed
	case err != nil:
		return fmt.Errorf("raise the leader's fence: %w", err)
	}
	l.fence = store.Change{Key: catalog.LeaderKey, Check: true, If: revisions[0]}
	return nil
}

// write makes changes if this is still the leader. A conflict of the changes themselves is returned as
// a *store.ConflictError.
func (l *leader) write(ctx context.Context, changes ...store.Change) error {
	_, err := l.store.Txn(ctx, append(changes, l.fence)...)
	if conflict, ok := errors.AsType[*store.ConflictError](err); ok && conflict.Key == catalog.LeaderKey {
		return errDeposed
	}
	return err
}

// cycle is one round: see what changed, do what follows, tell what came of it.
func (l *leader) cycle(ctx context.Context, keys []string) error {
	now := time.Now()
	if !now.Before(l.nextPoll) {
		l.nextPoll = now.Add(l.cfg.Poll)
		if err := l.poll(ctx); err != nil {
			return err
		}
	}
	if !now.Before(l.nextResync) {
		return l.resync(ctx)
	}
	l.recall()
	for _, key := range keys {
		l.stale[strings.TrimPrefix(key, catalog.WorkerPrefix)] = true
	}
	if err := l.refresh(ctx); err != nil {
		return err
	}
	if err := l.observe(ctx, now); err != nil {
		return err
	}
	// Before a member is placed, so that what comes once it runs is counted if it is for others.
	l.cover(ctx, now)
	if err := l.place(ctx); err != nil {
		return err
	}
	l.bury(ctx, now)
	l.cover(ctx, now)
	l.measure()
	return nil
}

// poll renews the lease and looks at the sessions.
func (l *leader) poll(ctx context.Context) error {
	session, ok := l.cfg.Session.Current()
	if !ok || session != l.session {
		return errDeposed
	}
	lease, err := l.store.Lead(ctx, leaseName, session)
	if err != nil {
		return fmt.Errorf("renew the leader's lease: %w", err)
	}
	if lease.Session != session {
		return errDeposed
	}
	live, err := l.hosts(ctx)
	if err != nil {
		return fmt.Errorf("read the sessions: %w", err)
	}
	l.sessions(live)
	return nil
}

// sessions takes over which runtimes live.
func (l *leader) sessions(live hosts) {
	gone, draining, types := l.placer.update(live)
	for _, h := range gone {
		for id, e := range h.workers {
			l.orphans = append(l.orphans, catalog.PlaceKey(h.session, id))
			l.placer.take(e)
			l.reconcile[id] = e
			if e.wanted && !e.failed() {
				l.see(e, observation{state: starting, reason: "its runtime " + h.pod + " is gone", token: e.seen.token}, false)
			} else {
				l.agenda.soon(e, time.Now())
			}
		}
		l.log.Info("a runtime is gone", "session", h.session, "pod", h.pod, "workers", len(h.workers))
	}
	for _, h := range draining {
		maps.Copy(l.reconcile, h.workers)
	}
	if len(types) == 0 {
		return
	}
	for _, typ := range types {
		maps.Copy(l.reconcile, l.waiting[typ])
	}
	for _, h := range l.placer.hosts {
		if h.draining {
			maps.Copy(l.reconcile, h.workers)
		}
	}
}

// refresh reads the records that changed.
func (l *leader) refresh(ctx context.Context) error {
	if len(l.stale) == 0 {
		return nil
	}
	keys := make([]string, 0, len(l.stale))
	for id := range l.stale {
		keys = append(keys, catalog.WorkerKey(id))
	}
	items, err := l.items(ctx, keys)
	if err != nil {
		return fmt.Errorf("read changed workers: %w", err)
	}
	for _, item := range items {
		l.take(item)
		delete(l.stale, strings.TrimPrefix(item.Key, catalog.WorkerPrefix))
	}
	for id := range l.stale { // there is no record at all
		l.forget(id, true)
		l.unquarantine(catalog.WorkerKey(id))
	}
	clear(l.stale)
	return nil
}

// take brings the index up to a record.
func (l *leader) take(item store.Item) {
	id := strings.TrimPrefix(item.Key, catalog.WorkerPrefix)
	decoded, err := catalog.DecodeWorker(item)
	if err != nil {
		l.quarantine(item, id, err)
		return
	}
	l.unquarantine(item.Key)
	w := record{decoded, item.Revision}
	if w.GetDeleted() {
		l.forget(id, true)
		if w.GetUpdatedAt() != nil {
			l.graves[id] = time.Time{}
		}
		return
	}
	delete(l.graves, id)
	e := l.workers[id]
	if e == nil {
		e = &entry{id: id, place: -1}
		e.take(w)
		l.workers[id] = e
		l.join(e)
		e.old = l.adopting && w.GetUpdatedAt().AsTime().Before(l.since)
		if !l.adopting || !w.GetCreatedAt().AsTime().Before(l.since) {
			l.see(e, observation{state: stopped, reason: "created"}, false)
		}
		if e.wanted {
			l.reconcile[id] = e
			if !e.old {
				l.see(e, observation{state: starting}, false)
			}
		}
		return
	}
	was, group, paused, reason := e.wanted, e.spec.Group, e.paused, e.pauseReason
	restarted := e.take(w)
	if e.paused != paused || e.pauseReason != reason {
		l.tellPause(e)
	}
	if group != e.spec.Group {
		l.leave(group, id)
		l.join(e)
	}
	l.touch(e.spec.Group, id)
	switch {
	case e.wanted && (restarted || !was):
		l.see(e, observation{state: starting, pod: e.seen.pod, owner: e.seen.owner, token: e.seen.token}, true)
		l.reconcile[id] = e
	case was && !e.wanted:
		l.stops(e)
		l.reconcile[id] = e
	case e.wanted && e.placed != e.toPlace():
		l.reconcile[id] = e
	}
}

// tellPause tells that a worker was paused or resumed.
func (l *leader) tellPause(e *entry) {
	kind, d := lifecycle.TypeResumed, e.data()
	if e.paused {
		kind = lifecycle.TypePaused
		d.Reason = e.pauseReason
	}
	l.notices.Add(kind, d)
	l.log.Info("worker pause", "worker", e.id, "name", e.name, "type", e.typ, "paused", e.paused, "reason", e.pauseReason)
}

// forget removes a worker from the index. Its placement goes unless only its record is broken.
func (l *leader) forget(id string, deleted bool) {
	e := l.workers[id]
	if e == nil {
		return
	}
	if deleted {
		if e.host != nil {
			l.orphans = append(l.orphans, catalog.PlaceKey(e.host.session, id))
		}
		d := e.data()
		d.State, d.Reason, d.Pod = "DELETED", "", ""
		l.notices.Add(lifecycle.TypeState, d)
		l.log.Info("worker deleted", "worker", id, "name", e.name, "type", e.typ)
	}
	l.placer.take(e)
	l.agenda.remove(e)
	l.leave(e.spec.Group, id)
	l.count(e.seen.state, e.typ, -1)
	delete(l.reconcile, id)
	delete(l.workers, id)
}

func (l *leader) join(e *entry) {
	group := e.spec.Group
	if group == "" {
		return
	}
	if l.members[group] == nil {
		l.members[group] = map[string]*entry{}
	}
	l.members[group][e.id] = e
	l.touch(group, e.id)
}

func (l *leader) leave(group, id string) {
	if group == "" {
		return
	}
	delete(l.members[group], id)
	if len(l.members[group]) == 0 {
		delete(l.members, group)
	}
	l.touch(group, id)
}

// touch notes that a member of a group changed.
func (l *leader) touch(group, id string) {
	if by, ok := l.dirty[group]; ok && by != id {
		id = ""
	}
	l.dirty[group] = id
}

// stops notes that a worker was asked to stop: it is stopping if somebody may be running it.
func (l *leader) stops(e *entry) {
	seen := observation{state: stopped, token: e.seen.token}
	if e.host != nil || e.seen.owner != "" {
		seen = observation{state: stopping, pod: e.seen.pod, owner: e.seen.owner, token: e.seen.token}
	}
	l.see(e, seen, false)
}

// see takes over what a worker is seen to be, and tells if that is news.
func (l *leader) see(e *entry, seen observation, anew bool) {
	was, wasFailed := e.seen, e.failed()
	e.seen = seen
	now := time.Now()
	if e.failed() != wasFailed {
		l.reconcile[e.id] = e
	}
	if seen.state == running {
		e.begun = true
	}
	if was.state != seen.state {
		l.count(was.state, e.typ, -1)
		l.count(seen.state, e.typ, +1)
		l.touch(e.spec.Group, e.id)
	}
	news := anew || was.state != seen.state ||
		seen.state == starting && seen.reason != was.reason && seen.reason == noRuntime(e.typ)
	if !news {
		return
	}
	if !e.settled() {
		l.agenda.soon(e, now)
	}
	if l.adopting && e.old && seen.state != starting {
		return
	}
	l.notices.Add(lifecycle.TypeState, e.data())
	level := l.log.Debug // there may be a hundred thousand of them, and they are published
	if seen.state == failed {
		level = l.log.Error
	}
	level("worker state", "worker", e.id, "name", e.name, "type", e.typ, "state", stateName(seen.state),
		"reason", seen.reason, "pod", seen.pod, "token", seen.token)
}

func (l *leader) count(state turnlanev1.WorkerState, typ string, by int) {
	if state == unknown {
		return
	}
	k := kind{state, typ}
	if l.counts[k] += by; l.counts[k] == 0 {
		delete(l.counts, k)
	}
	l.changed = true
}

// quarantine leaves a broken record out, and reports it once per revision.
func (l *leader) quarantine(item store.Item, id string, err error) {
	l.forget(id, false)
	told := fmt.Sprintf("%d: %v", item.Revision, err)
	if l.broken[item.Key] == told {
		return
	}
	l.broken[item.Key] = told
	l.changed = true
	l.log.Error("a catalog record cannot be read and is left out", "key", item.Key, "revision", item.Revision, "error", err)
	l.notices.Add(lifecycle.TypeQuarantined, lifecycle.Data{WorkerID: id, Reason: "the catalog record " + item.Key + " cannot be read", Error: err.Error()})
}

func (l *leader) unquarantine(key string) {
	if _, ok := l.broken[key]; ok {
		delete(l.broken, key)
		l.changed = true
		l.log.Info("a catalog record can be read again, or is gone", "key", key)
	}
}

// bury removes the data of deleted workers that is still there.
func (l *leader) bury(ctx context.Context, now time.Time) {
	for id, next := range l.graves {
		if now.Before(next) {
			continue
		}
		l.graves[id] = now.Add(10 * l.cfg.Poll)
		unlock, err := l.ids.lock(ctx, id)
		if err != nil {
			return
		}
		w, err := l.get(ctx, id)
		if err == nil && w.GetDeleted() {
			_, err = l.scrub(ctx, w)
		}
		unlock()
		if err == nil || errors.Is(err, store.ErrNotFound) {
			delete(l.graves, id)
		} else if !errors.Is(err, store.ErrConflict) {
			l.log.Warn("the data of a deleted worker remains for now", "worker", id, "error", err)
		}
	}
}

// measure sets the gauges if they are out of date.
func (l *leader) measure() {
	if !l.changed {
		return
	}
	l.changed = false
	s := snapshot{leading: true, workers: make(map[kind]int, len(l.counts)), quarantined: len(l.broken)}
	maps.Copy(s.workers, l.counts)
	for group, topics := range l.reported {
		for topic, c := range topics {
			s.coverage = append(s.coverage, coveredShare{group, topic, float64(c.running) / float64(c.size)})
		}
	}
	// The worst come first, since the label sets of a metric are bounded.
	slices.SortFunc(s.coverage, func(a, b coveredShare) int {
		return cmp.Or(cmp.Compare(a.share, b.share), cmp.Compare(a.group, b.group), cmp.Compare(a.topic, b.topic))
	})
	l.gauges.set(s)
}
