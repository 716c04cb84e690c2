package metrics

// Names of instruments, as OpenTelemetry has them. Prometheus shows them with underscores, the unit,
// and _total for counters: turnlane.publish.events is turnlane_publish_events_total.
const (
	// Publishing.
	PublishEvents   = "turnlane.publish.events"   // counter, by Class
	PublishBytes    = "turnlane.publish.bytes"    // counter, as stored, by Class
	PublishDuration = "turnlane.publish.duration" // histogram, s: from admission to the store's answer
	PublishRefused  = "turnlane.publish.refused"  // counter of batches, by Reason
	PublishFlush    = "turnlane.publish.flush"    // histogram, events appended to the store at once
	PublishInFlight = "turnlane.publish.inflight" // gauge, bytes

	// Subscriptions of the public interface.
	Subscribers        = "turnlane.subscribers"         // gauge
	SubscribersStalled = "turnlane.subscribers.stalled" // counter of those closed for taking nothing
	SubscriberEvents   = "turnlane.subscriber.events"   // counter of events sent

	// Fan-out.
	Feeds           = "turnlane.feeds"            // gauge, by State: live, catching_up or stalled
	FeedTopics      = "turnlane.feeds.topics"     // gauge of topics followed
	FeedLag         = "turnlane.feed.lag"         // gauge, s: age of the oldest event that a feed still waits for
	FeedCatchUps    = "turnlane.feed.catchups"    // counter of changes from live to catching up
	FeedGaps        = "turnlane.feed.gaps"        // counter of stretches that never come, by Kind
	FeedUndecodable = "turnlane.feed.undecodable" // counter of entries that no reader can read
	FeedRecent      = "turnlane.feeds.recent"     // gauge, bytes kept for feeds a little behind

	// Retention.
	RetentionEntries  = "turnlane.retention.removed.entries" // counter
	RetentionBytes    = "turnlane.retention.removed.bytes"   // counter
	RetentionDuration = "turnlane.retention.pass.duration"   // histogram, s
	RetentionFailed   = "turnlane.retention.failed"          // counter of passes cut short by an error

	// Turns.
	Turns        = "turnlane.turns"          // counter, by Outcome
	TurnDuration = "turnlane.turn.duration"  // histogram, s
	EndToEnd     = "turnlane.event.delay"    // histogram, s: from stored to the start of its first turn
	TurnsStuck   = "turnlane.turns.stuck"    // counter of handlers given up on
	Workers      = "turnlane.workers"        // gauge, by State
	LaneDepth    = "turnlane.lanes.events"   // gauge, events waiting in all lanes
	LaneBytes    = "turnlane.lanes.bytes"    // gauge
	Uncovered    = "turnlane.uncovered"      // counter of events whose slot has no running member
	CursorAge    = "turnlane.cursor.age"     // gauge, s: how long the oldest unflushed progress waits
	CursorFlush  = "turnlane.cursor.flushes" // counter

	// Dead letters, as the leader among those that keep them sees it.
	DeadLetters         = "turnlane.deadletters"          // gauge, by Topic and Reason
	DeadLetterAge       = "turnlane.deadletters.age"      // gauge, s: of the oldest, by Topic and Reason
	DeadLettersRedriven = "turnlane.deadletters.redriven" // counter of those brought back
	DeadLettersPurged   = "turnlane.deadletters.purged"   // counter

	// Catalog, as the leader among the workmanagers sees it.
	CatalogWorkers = "turnlane.catalog.workers"     // gauge, by State and Type
	Quarantined    = "turnlane.catalog.quarantined" // gauge of records that cannot be read
	GroupCoverage  = "turnlane.group.coverage"      // gauge, share of the slots with a running member, by Group and Topic
)

// Names of attributes, each with few values.
const (
	Class   = "class"   // of a topic: user, sys, dlq or wrk
	Reason  = "reason"  // a stable reason, as in errors
	State   = "state"   // of a feed or a worker
	Kind    = "kind"    // of a gap
	Outcome = "outcome" // of a turn
	Type    = "type"    // of workers
	Group   = "group"   // of slots
	Topic   = "topic"   // only with Group, where what is above the bound of label sets is counted together and the worst come first, and of dead letters
	Policy  = "policy"  // uncovered: nobody gets the events; waiting: a member that is down replays them
)
