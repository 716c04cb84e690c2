package feed

// check names one condition of the rules, so that a test can switch it off and see the model fail.
type check uint32

const (
	checkNothingNew  check = 1 << iota // a span that ends at or before the position is ignored
	checkHole                          // a span that begins after the position is not accepted
	checkAbove                         // of a span, only entries above the position are taken
	checkOwned                         // entries of other slots are left out
	checkFull                          // a full sink makes the feed stay at the last entry examined
	checkHead                          // live only at or past the head
	checkRoom                          // live only while the sink is at most half full
	checkLiveCovered                   // live only while the topic's slot set has the feed's slots
	checkCovered                       // a feed moves only over spans whose slot set has its slots
	checkSameLog                       // live only in the topic's own incarnation
	checkSure                          // live only after a page has shown that the log has the position
	checkAsk                           // gaps are told only if the reader stands where it asked from
	checkIncarnation                   // another log is a gap
	checkRegressed                     // a log that went back is a gap
	checkTrimmed                       // a trimmed range is a gap
	checkHeld                          // a span that was read does not cover what had been trimmed

	checkEnd
)

// disabled is 0 but in the tests that prove each check necessary.
var disabled check

func off(c check) bool { return disabled&c != 0 }
