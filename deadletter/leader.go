package deadletter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/turnlane/turnlane/internal/catalog"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	"github.com/turnlane/turnlane/store"
)

// leaseName is the name of the leader's lease.
const leaseName = "deadletter"

// maxJobs is how many redrives are under way at once; the others wait.
const maxJobs = 16

// Run takes part in leading: while this process is the leader, it carries out redrives and counts dead
// letters. It returns when ctx ends; what is under way is settled or left for whoever leads next.
func (s *Service) Run(ctx context.Context) error {
	defer s.Shutdown()
	defer s.meter.close()
	for ctx.Err() == nil {
		err := s.term(ctx)
		s.meter.show(nil)
		if err != nil && ctx.Err() == nil && !errors.Is(err, errDeposed) {
			s.log.Warn("the leader of the dead letters stops for a moment", "error", err)
		}
		sleep(ctx, s.cfg.Poll)
	}
	return nil
}

// term leads if this process can, until it can no longer (errDeposed) or the store fails.
func (s *Service) term(ctx context.Context) error {
	session, ok := s.cfg.Session.Current()
	if !ok {
		return errDeposed
	}
	lease, err := s.store.Lead(ctx, leaseName, session)
	if err != nil {
		return fmt.Errorf("lead: %w", err)
	}
	if lease.Session != session {
		return errDeposed
	}
	bell, err := s.store.WatchKeys(ctx, catalog.RedrivePrefix)
	if err != nil {
		return fmt.Errorf("watch the redrives: %w", err)
	}
	s.log.Info("leading the dead letters", "session", session, "token", lease.Token)

	ctx, stop := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop()
	rung, lost := make(chan struct{}, 1), make(chan error, 1)
	parts.Go(func() { lost <- listen(ctx, bell, rung) })
	parts.Go(func() { s.count(ctx) })

	t := &jobs{s: s, token: lease.Token, running: map[string]bool{}, ended: make(chan string), leads: func() bool {
		now, ok := s.cfg.Session.Current()
		return ok && now == session
	}}
	poll := time.NewTicker(s.cfg.Poll)
	defer poll.Stop()
	look := true
	for {
		if look {
			if err := t.start(ctx, &parts); err != nil {
				return err
			}
		}
		look = false
		select {
		case <-rung:
			look = true
		case topic := <-t.ended:
			delete(t.running, topic)
			look = true
		case <-poll.C:
			if !t.leads() {
				return errDeposed
			}
			now, err := s.store.Lead(ctx, leaseName, session)
			if err != nil {
				return fmt.Errorf("renew the lease: %w", err)
			}
			if now != lease {
				return errDeposed
			}
		case err := <-lost:
			return fmt.Errorf("watch the redrives: %w", err)
		case <-ctx.Done():
			return nil
		}
	}
}

// listen passes on that the bell rings until it fails or ctx ends.
func listen(ctx context.Context, bell store.Bell, rung chan<- struct{}) error {
	defer bell.Close()
	for {
		if _, err := bell.Wait(ctx); err != nil {
			return err
		}
		select {
		case rung <- struct{}{}:
		default:
		}
	}
}

// jobs are the redrives under way in one term. Only used by the goroutine of the term.
type jobs struct {
	s       *Service
	token   uint64
	leads   func() bool
	running map[string]bool // by topic
	ended   chan string     // topics
}

// start begins the redrives that are recorded and not under way. Each tells its end through ended.
func (t *jobs) start(ctx context.Context, parts *sync.WaitGroup) error {
	const page = 1000
	for after := ""; ; {
		items, err := t.s.store.List(ctx, catalog.RedrivePrefix, after, page)
		if err != nil {
			return fmt.Errorf("list the redrives: %w", err)
		}
		for _, item := range items {
			topic := item.Key[len(catalog.RedrivePrefix):]
			rec, err := catalog.Decode(item, &storev1.RedriveRecord{})
			if err != nil || rec.GetTopic() != topic || rec.GetFinished() || rec.GetRate() == 0 || t.running[topic] || len(t.running) >= maxJobs {
				continue // a broken one is told when somebody asks for it
			}
			t.running[topic] = true
			j := &job{s: t.s, rec: rec, revision: item.Revision, token: t.token, leads: t.leads, skipped: map[workerKey]bool{}}
			parts.Go(func() {
				err := j.run(ctx)
				if err != nil && ctx.Err() == nil {
					t.s.log.Warn("a redrive stops for a moment", "topic", topic, "id", j.rec.GetId(), "error", err)
					sleep(ctx, t.s.cfg.Poll)
				}
				select {
				case t.ended <- topic:
				case <-ctx.Done():
				}
			})
		}
		if len(items) < page {
			return nil
		}
		after = items[len(items)-1].Key
	}
}
