// Package store declares what Turnlane needs from a store: small interfaces and value types. The
// implementations are in its sub-packages, and store/storetest is the suite that each must pass.
package store

import (
	"context"
	"time"

	"github.com/turnlane/turnlane/event"
)

// Store is everything that one installation keeps. All methods are safe for concurrent use; each may
// block on disk or network until its context ends. A context that ends during a write leaves the
// outcome open: the error is then ErrOutcomeUnknown, unless the write surely did not happen.
type Store interface {
	Log
	Registry
	Leases
	Committer

	// Check reports whether the store can serve reads and writes now.
	Check(ctx context.Context) error
	// Close flushes and ends the store. Calls under way fail with ErrClosed or finish.
	Close() error
}

// Log is the topics: one ordered, retained log of records each. A topic exists from its first append.
type Log interface {
	// Append stores batches at the end of one topic, in order. Each batch is all or nothing; a refused
	// batch (see Appended.Err) leaves no trace and does not touch the others. It returns after the
	// records are as durable as the store is configured to make them; nothing is readable before. An
	// error of the whole call means that none was stored, or ErrOutcomeUnknown. The records belong to
	// the store afterwards: it may keep them, so the caller does not write to them.
	Append(ctx context.Context, topic string, batches []Batch) ([]Appended, error)

	// Read returns what follows after: a span whose From is after, of at least one entry if there is
	// one, within the limit otherwise. At the end of the log the span's To is the topic's last
	// position (or after, if that is larger). The page's bounds tell the caller of gaps: After below
	// Bounds.Removed means that entries are gone; above Bounds.Last, that the log went back. Entries
	// may share one buffer of at most 64 KiB; they are never written to again.
	Read(ctx context.Context, topic string, after event.Position, limit ReadLimit) (Page, error)

	// Bounds tells about one topic; an unknown topic has zero Bounds and no error.
	Bounds(ctx context.Context, topic string) (Bounds, error)

	// Before returns the largest position with no entry stored (Record.StoredAt) at t or later at or
	// below it: reading after it gives the first such entry, and nothing at or after t is missed, also
	// when clocks stepped. If all entries are older it is the last position.
	Before(ctx context.Context, topic string, t time.Time) (event.Position, error)

	// Topics lists topics in byte order of their names, those that start with prefix and come after
	// the given name, limit at the most.
	Topics(ctx context.Context, prefix, after string, limit int) ([]TopicInfo, error)

	// Trim removes the oldest entries until the limit holds, and remembers the last position removed.
	Trim(ctx context.Context, topic string, limit TrimLimit) (Trimmed, error)

	// Remove removes single entries, wherever they are in the log, and says how many there were; positions
	// without an entry are none. It is no trim: Bounds.Removed stays, and readers see no gap, but do not
	// get what is removed from then on. Up to 1,000 are removed in one atomic step, more in several.
	Remove(ctx context.Context, topic string, positions ...event.Position) (removed int, err error)

	// DeleteTopic removes a topic with all that belongs to it. A later append makes a new incarnation,
	// whose positions are above all of the old one.
	DeleteTopic(ctx context.Context, topic string) error

	// OpenNews opens a source of news about topics. The caller closes it.
	OpenNews(ctx context.Context) (News, error)
}

// Batch is records for one topic: from a publisher, or, if Turn is set, the outputs of one turn.
type Batch struct {
	Records []event.Record
	Turn    *TurnMark
}

// TurnMark says which turn made a batch. The topic keeps, per worker, the highest token seen and, per
// worker and input topic, the last (run, position) stored, in the same atomic step as the records: a
// lower token is refused with ErrStaleToken; a (run, position) at or below the last stored one is
// answered as a repeat and stores nothing.
type TurnMark struct {
	Worker   string
	Token    uint64
	Run      uint64
	Topic    string         // the input topic
	Position event.Position // the input position
}

// Appended is the fate of one batch.
type Appended struct {
	Positions []event.Position // one per record; nil for a repeat or an error
	Repeat    bool             // stored before, by an earlier attempt at the same turn
	Err       error            // ErrStaleToken, ErrPositions
}

// ReadLimit bounds a page. Zero fields mean 1,000 entries and 1 MiB.
type ReadLimit struct {
	Entries int
	Bytes   int
}

// Page is what Read returns.
type Page struct {
	event.Span
	Bounds Bounds
}

// Bounds are the facts about a topic's log. All but First stay known when it is empty.
type Bounds struct {
	Incarnation string         // "" for a topic that does not exist
	First       event.Position // the oldest entry held; zero if none
	Last        event.Position // the newest position given out, also when that entry is gone
	Removed     event.Position // the newest position removed by Trim; zero if none
	Entries     uint64         // held now; may be approximate
	Bytes       uint64         // held now, records and their keys; may be approximate
}

// TopicInfo is a row of Topics.
type TopicInfo struct {
	Topic string
	Bounds
}

// TrimLimit says what to keep. Zero fields do not limit.
type TrimLimit struct {
	MaxBytes uint64
	// StoredBefore removes leading entries stored before it, and stops at the first entry that is young.
	// One whose clock was ahead keeps its successors until it is old itself.
	StoredBefore time.Time
	// UpTo removes entries at or below it.
	UpTo event.Position
}

// Trimmed is what a Trim removed.
type Trimmed struct {
	Entries, Bytes uint64
	Removed        event.Position
}

// Bell reports names in which something changed. It coalesces: many changes of one name may be told
// once, and it may ring for nothing, but a change after the bell was hung is never left untold.
type Bell interface {
	// Wait blocks until there is something to tell. One goroutine at a time may wait.
	Wait(ctx context.Context) ([]string, error)
	// Close ends the bell; a Wait under way returns ErrClosed.
	Close() error
}

// News is a Bell for topics, hung and taken down one by one while it runs.
type News interface {
	Bell
	// Watch returns once every append that starts afterwards will be told.
	Watch(ctx context.Context, topic string) error
	Unwatch(topic string)
}

// Registry keeps catalog records: small values under keys, with revisions.
type Registry interface {
	// Get returns ErrNotFound for a key without a record.
	Get(ctx context.Context, key string) (Item, error)
	// List returns the records whose keys start with prefix and come after the given key, in byte
	// order, limit at the most. A broken record is returned with Item.Err set.
	List(ctx context.Context, prefix, after string, limit int) ([]Item, error)
	// Txn makes all changes or none. It returns the new revisions in the order of the changes (0 for a
	// deletion), or ErrConflict (see ConflictError) if a condition does not hold.
	Txn(ctx context.Context, changes ...Change) ([]uint64, error)
	// WatchKeys hangs a bell that tells changed keys under the prefix.
	WatchKeys(ctx context.Context, prefix string) (Bell, error)
}

// Item is a record of the registry. A revision is never 0, and grows with every change of the key,
// also across its deletion.
type Item struct {
	Key      string
	Value    []byte
	Revision uint64
	Err      error // set by List for a record that cannot be read back (ErrCorrupt)
}

// Change is one condition and one write of a Txn.
type Change struct {
	Key    string
	Value  []byte
	Delete bool // delete instead of put
	Check  bool // only check the condition, write nothing
	// If is the condition on the key: Any, Absent, or the revision that it must have.
	If uint64
}

// Conditions for Change.If.
const (
	Absent uint64 = 0
	Any    uint64 = 1<<64 - 1
)

// SessionInfo is what a process says of itself.
type SessionInfo struct {
	Pod      string   // name, unique among live processes by convention only
	Addr     string   // where others reach it; may be empty
	Roles    []string // gateway, runtime, workmanager
	Types    []string // worker types hosted
	Version  string
	Draining bool
}

// Session is a process's membership.
type Session struct {
	ID string
	SessionInfo
	OpenedAt, ExpiresAt time.Time // by the store's clock
}

// Leases keeps sessions, the owner of each worker, and named leader leases.
type Leases interface {
	// OpenSession starts a membership that ends unless renewed within ttl.
	OpenSession(ctx context.Context, info SessionInfo, ttl time.Duration) (Session, error)
	// RenewSession extends a live session and replaces its info; ErrSessionExpired is final.
	RenewSession(ctx context.Context, id string, info SessionInfo, ttl time.Duration) error
	// CloseSession ends a session now; an unknown one is not an error.
	CloseSession(ctx context.Context, id string) error
	// Sessions lists the live sessions, by id.
	Sessions(ctx context.Context) ([]Session, error)

	// Acquire makes the session own the worker, with the next token, if nobody does, if the owner's
	// session has expired, or if it is the session's own already. Else it fails with ErrOwned and
	// returns the present owner.
	Acquire(ctx context.Context, worker, session string) (Owner, error)
	// Release gives a worker up: the record keeps its token, state and reason, and has no session. It
	// fails with ErrStaleToken when the record has another session or token.
	Release(ctx context.Context, o Owner) error
	// Owner returns the record of a worker, zero for one never owned. Live tells whether its session is.
	Owner(ctx context.Context, worker string) (Owner, error)
	// Owners is Owner for many, in the order asked.
	Owners(ctx context.Context, workers []string) ([]Owner, error)

	// Lead makes the session leader of name if nobody live is, and returns the leader there is. Asked
	// by the leader it changes nothing. The token grows with every change of leader.
	Lead(ctx context.Context, name, session string) (Leader, error)
}

// Owner is the record that says who runs a worker. It is never deleted, so that tokens go on counting.
type Owner struct {
	Worker  string
	Session string // "" when nobody owns it
	Pod     string
	Token   uint64
	State   string // as the owner reported it last: STARTING, RUNNING, STOPPING, STOPPED, FAILED
	Reason  string
	Live    bool // Session is not empty and has not expired
}

// Leader is a leader lease.
type Leader struct {
	Session string
	Token   uint64
}

// Committer writes what a worker must not lose, fenced by session and token.
type Committer interface {
	// Commit applies each commit in one atomic step of its own, and returns an error for each (nil,
	// ErrStaleToken, ErrSessionExpired). It may write many in one batch. The second result is for the
	// whole call: none was applied, or ErrOutcomeUnknown.
	Commit(ctx context.Context, commits []Commit) ([]error, error)
	// Load returns what the commits of a worker left; zero for none.
	Load(ctx context.Context, worker string) (WorkerData, error)
	// Forget removes a worker's data, but not its owner record. Its state and cursors are gone.
	Forget(ctx context.Context, worker string) error
}

// Commit is one fenced write of one worker. If its Start is newer than the stored one, the stored
// cursors and attempts are dropped first, so that those of another run are never mixed in; an older
// Start is refused with ErrStaleToken. The state stays. Every commit clears a stored Handover unless
// it sets its own.
type Commit struct {
	Owner Owner // Worker, Session and Token are compared; State and Reason are stored with it if set
	Start Start
	// Handover marks that the worker ended in order, with everything done settled: whoever goes on
	// resumes at these cursors in every replay mode.
	Handover bool
	Cursors  []Cursor
	Attempts []Attempt
	State    []StateChange
}

// Start identifies which beginning of a worker its cursors belong to: Run grows when it is sought,
// Generation with every StartWorker that changed its desired state.
type Start struct {
	Run        uint64
	Generation uint64
}

// Cursor is a worker's position in a topic, up to and including which it is done.
type Cursor struct {
	Topic       string
	Incarnation string
	Position    event.Position
}

// Attempt is what is known of an event that failed, or that was in hand when the process ended. A
// commit replaces the record of (Topic, Position); Attempts and Crashes of 0 with no Started remove it.
type Attempt struct {
	Topic       string
	Position    event.Position
	Attempts    uint32 // failed starts of the handler
	Crashes     uint32 // starts that ended with the process
	Started     bool   // a start mark: the handler may be running
	FirstFailed time.Time
	LastFailed  time.Time
	Error       string
	// GivenUp is why no further start is due; "" while there is one. It has no meaning to the store.
	GivenUp string
}

// StateChange sets or deletes one key of a worker's state.
type StateChange struct {
	Key    string
	Value  []byte
	Delete bool
}

// WorkerData is all that Load returns.
type WorkerData struct {
	Start    Start
	Handover bool
	Cursors  []Cursor
	Attempts []Attempt
	State    map[string][]byte
}
