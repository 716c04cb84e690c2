package catalog

// LeaderKey holds the token of the workmanager that places workers, in decimal. Each of its writes
// checks the key's revision, so that a leader that was deposed without knowing it writes nothing.
const LeaderKey = "leader/workmanager"
