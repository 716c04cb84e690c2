package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/client"
)

// What pub fills in.
const (
	defaultSource = "turnlane-cli"
	defaultType   = "turnlane.pub"
)

// pubFlags is what the flags of pub say.
type pubFlags struct {
	id, source, typ, subject, time string
	contentType, schema            string
	ext                            pairsFlag
	file                           string
	rate                           rateFlag
}

// published is a stored event as pub -o json tells it.
type published struct {
	Topic    string `json:"topic"`
	ID       string `json:"id"`
	Position string `json:"position"`
}

func (a *app) pubCommand() *cobra.Command {
	var f pubFlags
	cmd := &cobra.Command{
		Use:   "pub TOPIC [DATA] [flags]",
		Short: "Publish events to a topic",
		Long: `Publishes one event with DATA, or the events of a file.

What is missing is filled in: a new UUIDv7 as id, source ` + defaultSource + `, type ` + defaultType + `, and the
datacontenttype: application/json if DATA is JSON, else text/plain. Without DATA the event has none.
Prints the position of the event once it is stored.

A file has one CloudEvents JSON object a line; lines without id, source or type get one, and everything
else is as strict as CloudEvents is. Files compressed with gzip are read too; - is standard input.
Events are sent in batches. At a line that is no event, all lines before it are published, none after
it, and the line is named. The server takes or refuses a batch whole: when it refuses one, pub says
which lines that were; lines after them that were already under way may be stored. So the last line
that says how many lines are stored, or -o json, is what to go by. The exit code is 1 in each case.`,
		Example: `  turnlane pub orders '{"total":12}' --subject customer-7 --type order.placed
  turnlane pub notes "plain text" --ext tenant=acme
  turnlane pub flights --file flights.jsonl.gz --rate 500
  generate | turnlane pub readings --file -`,
		Args: arguments("TOPIC", "[DATA]"),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.id, "id", "", "the event's `ID` (default a new UUIDv7)")
	flags.StringVar(&f.source, "source", defaultSource, "the event's source, a `URI` reference")
	flags.StringVar(&f.typ, "type", defaultType, "the event's `TYPE`")
	flags.StringVar(&f.subject, "subject", "", "the event's `SUBJECT`, which is its routing key")
	flags.StringVar(&f.time, "time", "", "the event's `TIME`, RFC 3339")
	flags.StringVar(&f.contentType, "datacontenttype", "", "the `MEDIA` type of DATA (default by what DATA is)")
	flags.StringVar(&f.schema, "dataschema", "", "the `URI` of the schema of DATA")
	flags.Var(&f.ext, "ext", "an extension attribute, a string; repeatable")
	flags.StringVar(&f.file, "file", "", "publish the events of `F.jsonl[.gz]`; - is standard input")
	flags.Var(&f.rate, "rate", "with --file: at most so many events per second")
	asJSON := outputFlag(flags)
	return a.verb(cmd, func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if err := f.check(cmd, args); err != nil {
			return err
		}
		if cmd.Flags().Changed("file") {
			return a.pubFile(ctx, args[0], f, asJSON())
		}
		return a.pubOne(ctx, args, f, asJSON())
	})
}

// check refuses flags that do not go together, and values that are there but empty.
func (f *pubFlags) check(cmd *cobra.Command, args []string) error {
	flags := cmd.Flags()
	if err := refuseEmpty(flags, "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "file"); err != nil {
		return err
	}
	if !flags.Changed("file") {
		if flags.Changed("rate") {
			return usagef("--rate goes with --file")
		}
		return nil
	}
	if len(args) > 1 {
		return usagef("DATA and --file exclude each other")
	}
	for _, name := range []string{"id", "subject", "time", "datacontenttype", "dataschema", "ext"} {
		if flags.Changed(name) {
			return usagef("--%s is for one event; with --file it stands in each line", name)
		}
	}
	return nil
}

// event makes the event of one pub; data is nil if there is none.
func (f *pubFlags) event(data *string) (*event.Event, error) {
	e := &event.Event{
		ID: f.id, Source: f.source, Type: f.typ, Subject: f.subject, Time: f.time,
		DataContentType: f.contentType, DataSchema: f.schema,
	}
	if e.ID == "" {
		e.ID = newID()
	}
	for name, value := range f.ext {
		e.SetExtension(name, event.String(value))
	}
	if data != nil {
		setData(e, *data)
	}
	if err := admission.Event(e, 0); err != nil {
		return nil, err
	}
	return e, nil
}

// setData gives e the data in the shape that fits its content type, and the content type that fits the
// data if it has none.
func setData(e *event.Event, text string) {
	e.Data = []byte(text)
	isJSON := json.Valid(e.Data)
	if e.DataContentType == "" {
		switch {
		case isJSON:
			e.DataContentType = "application/json"
		case utf8.ValidString(text):
			e.DataContentType = "text/plain"
		default:
			e.DataContentType = "application/octet-stream"
		}
	}
	switch {
	case event.IsJSON(e.DataContentType):
		e.DataKind = event.JSONData // Validate refuses what is not JSON
	case utf8.ValidString(text):
		e.DataKind = event.TextData
	default:
		e.DataKind = event.BinaryData
	}
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func (a *app) pubOne(ctx context.Context, args []string, f pubFlags, asJSON bool) error {
	topic, data := args[0], (*string)(nil)
	if len(args) > 1 {
		data = &args[1]
	}
	e, err := f.event(data)
	if err != nil {
		return usageError(err.Error())
	}
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	positions, err := c.Publish(ctx, topic, e)
	if err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(published{topic, e.ID, positions[0].String()})
	}
	_, err = fmt.Fprintln(a.stdout, positions[0])
	return err
}

// pubFile publishes the events of a file and sums up.
func (a *app) pubFile(ctx context.Context, topic string, f pubFlags, asJSON bool) error {
	source, err := openLines(f.file, a.stdin)
	if err != nil {
		return err
	}
	defer source.Close()
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.Close()

	r := &pubReport{app: a, topic: topic, file: source.name, asJSON: asJSON, began: a.now(), progress: a.newProgress()}
	batches := make(chan client.Batch)
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	readErr := make(chan error, 1) // the reader may hang on standard input when we have long finished
	go func() {
		defer close(batches)
		readErr <- source.batches(reading, f, batches)
	}()

	// Ctrl-C ends the reading; what was sent is still waited for, but not for ever.
	sending, stopSending := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSending()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(5*time.Second, stopSending) })()

	err = c.PublishStream(sending, topic, batches, r.settled)
	if err == nil {
		err = <-readErr
	}
	r.progress.clear()
	if sumErr := r.sumUp(err); sumErr != nil {
		return sumErr
	}
	return r.explain(err)
}

// pubReport is what became of the lines of a file. It is used by one goroutine at a time.
type pubReport struct {
	*app
	topic, file string
	asJSON      bool
	began       time.Time
	progress    *progress

	stored      int
	storedLines lineSpans
	refused     lineSpans
	unknown     lineSpans
	refusal     error // of the first batch that was refused
	at          int   // the line that the refusal is about, 0 if it is about all of them
	first, last event.Position
	writeErr    error
}

func (r *pubReport) settled(b client.Batch, positions []event.Position, err error) {
	var refused *client.Error
	switch {
	case err == nil:
		if r.stored == 0 {
			r.first = positions[0]
		}
		r.stored += len(positions)
		r.last = positions[len(positions)-1]
		r.storedLines.add(b.Lines)
		r.print(b, positions)
		r.progress.show("published %d events, %s", r.stored, perSecond(r.stored, r.now().Sub(r.began)))
	case errors.As(err, &refused) && refused.Reason != outcomeUnknown:
		if r.refusal == nil {
			r.refusal = err
			r.at = lineOf(refused, b)
		}
		r.refused.add(b.Lines)
	default:
		r.unknown.add(b.Lines)
	}
}

func (r *pubReport) print(b client.Batch, positions []event.Position) {
	if !r.asJSON || r.writeErr != nil {
		return
	}
	var out strings.Builder
	for i, e := range b.Events {
		if err := writeJSON(&out, published{r.topic, e.ID, positions[i].String()}); err != nil {
			r.writeErr = err
			return
		}
	}
	_, r.writeErr = fmt.Fprint(r.stdout, out.String())
}

// sumUp prints what is stored, on standard error if standard output has the events.
func (r *pubReport) sumUp(err error) error {
	switch {
	case r.writeErr != nil:
		return r.writeErr
	case err != nil && r.stored == 0:
		return nil
	}
	w := r.stdout
	if r.asJSON {
		if err == nil {
			return nil
		}
		w = r.stderr
	}
	text := fmt.Sprintf("published %s to %s", plural(r.stored, "event"), r.topic)
	if r.stored > 0 {
		took := r.now().Sub(r.began)
		text += fmt.Sprintf(", positions %s to %s, in %s (%s)", r.first, r.last, took.Round(time.Millisecond), perSecond(r.stored, took))
	}
	if err != nil && r.stored > 0 {
		text += "; stored are lines " + r.storedLines.String()
	}
	_, printErr := fmt.Fprintln(w, text)
	return printErr
}

// explain adds to an error which lines it is about.
func (r *pubReport) explain(err error) error {
	if err == nil {
		return nil
	}
	if r.refusal != nil {
		where := "lines " + r.refused.String()
		if r.at > 0 {
			where = fmt.Sprintf("line %d", r.at)
		}
		err = fmt.Errorf("%s: %s: %w; none of the lines %s is stored", r.file, where, err, r.refused.String())
	}
	if len(r.unknown) > 0 {
		err = fmt.Errorf("%s: lines %s: it is unknown whether they are stored: %w", r.file, r.unknown.String(), err)
	}
	return err
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func perSecond(n int, d time.Duration) string {
	if d <= 0 {
		return "at once"
	}
	return fmt.Sprintf("%.0f/s", float64(n)/d.Seconds())
}
