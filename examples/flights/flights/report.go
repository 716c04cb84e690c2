package flights

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/turnlane/turnlane/examples/flights/data"
)

const (
	topAirports    = 8
	maxDifferences = 10
)

// table prints the busiest airports, and what each member did.
func table(out io.Writer, books []*ledger) error {
	airports := make(map[string]data.Airport)
	member := make(map[string]uint32)
	var events, subjects [members]int
	for _, l := range books {
		events[l.member] += l.count()
		for name, f := range l.figures() {
			airports[name], member[name] = f, l.member
			subjects[l.member]++
		}
	}
	busiest := slices.SortedFunc(maps.Keys(airports), func(a, b string) int {
		return cmp.Or(cmp.Compare(airports[b].Flights, airports[a].Flights), cmp.Compare(a, b))
	})

	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "airport\tflights\tlate > 15 min\tdelay, min\tdistance, miles\tslot\t\n")
	for _, name := range busiest[:min(topAirports, len(busiest))] {
		f := airports[name]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t\n", name, f.Flights, f.Late, f.Delay, f.Distance, member[name])
	}
	if more := len(busiest) - topAirports; more > 0 {
		fmt.Fprintf(w, "+ %d more\t\t\t\t\t\t\n", more)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "slot\tevents\tairports\t\n")
	for slot := range members {
		fmt.Fprintf(w, "%d\t%d\t%d\t\n", slot, events[slot], subjects[slot])
	}
	return w.Flush()
}

// progress is a line that is written over on a terminal, and not at all elsewhere.
type progress struct {
	out      io.Writer
	terminal bool
	shown    time.Time
}

const progressEvery = 100 * time.Millisecond

func (p *progress) show(perMember [members]int, of int) {
	if now := time.Now(); p.terminal && now.Sub(p.shown) >= progressEvery {
		p.shown = now
		fmt.Fprintf(p.out, "\r\x1b[K%6d of %d flights   slots %v", sum(perMember), of, perMember)
	}
}

func (p *progress) clear() {
	if p.terminal && !p.shown.IsZero() {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

func sum(perMember [members]int) (n int) {
	for _, m := range perMember {
		n += m
	}
	return n
}
