package turnlane

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

// refusing is a store that takes no members while refuse is set.
type refusing struct {
	store.Store
	refuse atomic.Bool
}

func (r *refusing) OpenSession(ctx context.Context, info store.SessionInfo, ttl time.Duration) (store.Session, error) {
	if r.refuse.Load() {
		return store.Session{}, store.ErrUnavailable
	}
	return r.Store.OpenSession(ctx, info, ttl)
}

// A process that is no member is alive and not ready, and says why; it is ready once it has become one.
func TestNotReadyWithoutASession(t *testing.T) {
	memory, err := pebblestore.Open(pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	db := &refusing{Store: memory}
	db.refuse.Store(true)
	s, err := NewServer(Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.assemble(db)
	if err != nil {
		t.Fatal(err)
	}
	var listeners [2]net.Listener
	for i := range listeners {
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		defer listeners[i].Close()
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.run(ctx, listeners[0], listeners[1]) }()

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	type readiness struct {
		Ready  bool
		Checks map[string]string
	}
	ask := func(path string) (code int, r readiness) {
		resp, err := client.Get("http://" + listeners[1].Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, r
	}
	code, said := ask("/readyz")
	if code != http.StatusServiceUnavailable || said.Ready || !strings.Contains(said.Checks["session"], "no session") {
		t.Errorf("without a session: %d %+v", code, said)
	}
	if code, _ := ask("/livez"); code != http.StatusOK {
		t.Errorf("without a session it is not even alive: %d", code)
	}
	select {
	case <-s.Ready():
		t.Error("the server says it is ready")
	default:
	}

	db.refuse.Store(false)
	select {
	case <-s.Ready():
	case err := <-ended:
		t.Fatalf("it ended: %v", err)
	}
	if code, said = ask("/readyz"); code != http.StatusOK || !said.Ready || said.Checks["session"] != "ok" {
		t.Errorf("with a session: %d %+v", code, said)
	}
	stop()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
