package workmanager_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/turnlane/turnlane/internal/rpcerr"
	v1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

func many(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint(i)] = "v"
	}
	return m
}

func TestDefinitionsAreCheckedAtTheDoor(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	long := func(n int) string { return strings.Repeat("x", n) }
	replay := func(mode v1.ReplayMode, first *v1.Start) func(*v1.CreateWorkerRequest) {
		return func(r *v1.CreateWorkerRequest) { r.Replay = &v1.Replay{Mode: mode, First: first} }
	}
	policy := func(p *v1.Policy) func(*v1.CreateWorkerRequest) {
		return func(r *v1.CreateWorkerRequest) { r.Policy = p }
	}
	letters := func(topic string) *v1.Policy { return &v1.Policy{DeadLetterTopic: new(topic)} }
	d := durationpb.New
	const first = v1.ReplayMode_REPLAY_MODE_FIRST
	for name, c := range map[string]struct {
		change func(*v1.CreateWorkerRequest)
		fields string // "" for good ones
	}{
		"as it is":              {func(*v1.CreateWorkerRequest) {}, ""},
		"longest id":            {func(r *v1.CreateWorkerRequest) { r.Id = long(64) }, ""},
		"id too long":           {func(r *v1.CreateWorkerRequest) { r.Id = long(65) }, "id"},
		"id with a dot":         {func(r *v1.CreateWorkerRequest) { r.Id = "a.b" }, "id"},
		"id with a slash":       {func(r *v1.CreateWorkerRequest) { r.Id = "a/b" }, "id"},
		"id with braces":        {func(r *v1.CreateWorkerRequest) { r.Id = "{a}" }, "id"},
		"id in Greek":           {func(r *v1.CreateWorkerRequest) { r.Id = "αβγ" }, "id"},
		"no type":               {func(r *v1.CreateWorkerRequest) { r.Type = "" }, "type"},
		"type with a space":     {func(r *v1.CreateWorkerRequest) { r.Type = "a b" }, "type"},
		"longest name":          {func(r *v1.CreateWorkerRequest) { r.Name = strings.Repeat("ß", 128) }, ""},
		"name of all kinds":     {func(r *v1.CreateWorkerRequest) { r.Name = "a/b {c}: *😀*" }, ""},
		"name too long":         {func(r *v1.CreateWorkerRequest) { r.Name = long(129) }, "name"},
		"name with a newline":   {func(r *v1.CreateWorkerRequest) { r.Name = "a\nb" }, "name"},
		"name with a zero":      {func(r *v1.CreateWorkerRequest) { r.Name = "a\x00" }, "name"},
		"name that is no UTF-8": {func(r *v1.CreateWorkerRequest) { r.Name = "\xff" }, "name"},
		"no topics":             {func(r *v1.CreateWorkerRequest) { r.Topics = nil }, "topics"},
		"an empty topic":        {func(r *v1.CreateWorkerRequest) { r.Topics = []string{"a", ""} }, "topics[1]"},
		"a topic twice":         {func(r *v1.CreateWorkerRequest) { r.Topics = []string{"a", "b", "a"} }, "topics[2]"},
		"a topic with a star":   {func(r *v1.CreateWorkerRequest) { r.Topics = []string{"a*"} }, "topics[0]"},
		"longest topic":         {func(r *v1.CreateWorkerRequest) { r.Topics = []string{long(200)} }, ""},
		"topic too long":        {func(r *v1.CreateWorkerRequest) { r.Topics = []string{long(201)} }, "topics[0]"},
		"system topics":         {func(r *v1.CreateWorkerRequest) { r.Topics = []string{"sys.a", "dlq." + long(251), "wrk.x"} }, ""},
		"system topic too long": {func(r *v1.CreateWorkerRequest) { r.Topics = []string{"dlq." + long(252)} }, "topics[0]"},
		"most topics":           {func(r *v1.CreateWorkerRequest) { r.Topics = topics(1024) }, ""},
		"too many topics":       {func(r *v1.CreateWorkerRequest) { r.Topics = topics(1025) }, "topics"},
		"size without a group":  {func(r *v1.CreateWorkerRequest) { r.GroupSize = 2 }, "group"},
		"index without a group": {func(r *v1.CreateWorkerRequest) { r.GroupIndex = 2 }, "group,group_size"},
		"group without a size":  {func(r *v1.CreateWorkerRequest) { r.Group = "g" }, "group_size"},
		"group of 1024":         {func(r *v1.CreateWorkerRequest) { r.Group, r.GroupSize, r.GroupIndex = "g", 1024, 1023 }, ""},
		"group of 1025":         {func(r *v1.CreateWorkerRequest) { r.Group, r.GroupSize = "g", 1025 }, "group_size"},
		"index too large":       {func(r *v1.CreateWorkerRequest) { r.Group, r.GroupSize, r.GroupIndex = "g", 3, 3 }, "group_index"},
		"group with a slash":    {func(r *v1.CreateWorkerRequest) { r.Group, r.GroupSize = "g/h", 3 }, "group"},
		"largest config":        {func(r *v1.CreateWorkerRequest) { r.Config = map[string]string{"k": long(65535)} }, ""},
		"config too large":      {func(r *v1.CreateWorkerRequest) { r.Config = map[string]string{"k": long(65536)} }, "config"},
		"config without a key":  {func(r *v1.CreateWorkerRequest) { r.Config = map[string]string{"": "v"} }, "config"},
		"most tags":             {func(r *v1.CreateWorkerRequest) { r.Tags = many(50) }, ""},
		"too many tags":         {func(r *v1.CreateWorkerRequest) { r.Tags = many(51) }, "tags"},
		"largest tag":           {func(r *v1.CreateWorkerRequest) { r.Tags = map[string]string{long(128): long(1024)} }, ""},
		"tag key too long":      {func(r *v1.CreateWorkerRequest) { r.Tags = map[string]string{long(129): ""} }, "tags[\""},
		"tag value too long":    {func(r *v1.CreateWorkerRequest) { r.Tags = map[string]string{"k": long(1025)} }, `tags["k"]`},
		"all of a policy":       {policy(&v1.Policy{HandlerTimeout: d(time.Millisecond), HandlerGrace: d(time.Hour), MaxAttempts: 1, Backoff: d(time.Second), MaxBackoff: d(time.Second)}), ""},
		"no time":               {policy(&v1.Policy{HandlerTimeout: d(0)}), "policy.handler_timeout"},
		"negative time":         {policy(&v1.Policy{HandlerTimeout: d(-time.Second)}), "policy.handler_timeout"},
		"time too long":         {policy(&v1.Policy{HandlerTimeout: d(25 * time.Hour)}), "policy.handler_timeout"},
		"malformed time":        {policy(&v1.Policy{HandlerTimeout: &durationpb.Duration{Seconds: 1, Nanos: -1}}), "policy.handler_timeout"},
		"grace too short":       {policy(&v1.Policy{HandlerGrace: d(1)}), "policy.handler_grace"},
		"most attempts":         {policy(&v1.Policy{MaxAttempts: 1_000_000}), ""},
		"too many attempts":     {policy(&v1.Policy{MaxAttempts: 1_000_001}), "policy.max_attempts"},
		"attempts at the end":   {policy(&v1.Policy{MaxAttempts: 1<<31 - 1}), "policy.max_attempts"},
		"attempts below zero":   {policy(&v1.Policy{MaxAttempts: 1<<32 - 1}), "policy.max_attempts"},
		"back-off over its cap": {policy(&v1.Policy{Backoff: d(2 * time.Second), MaxBackoff: d(time.Second)}), "policy.max_backoff"},
		"back-off over default": {policy(&v1.Policy{Backoff: d(time.Hour)}), ""},
		"cap under default":     {policy(&v1.Policy{MaxBackoff: d(time.Millisecond)}), ""},
		"most crashes":          {policy(&v1.Policy{MaxCrashes: 1_000_000}), ""},
		"too many crashes":      {policy(&v1.Policy{MaxCrashes: 1_000_001}), "policy.max_crashes"},
		"crashes below zero":    {policy(&v1.Policy{MaxCrashes: 1<<32 - 1}), "policy.max_crashes"},
		"dropped":               {policy(&v1.Policy{OnExhausted: v1.OnExhausted_ON_EXHAUSTED_DROP}), ""},
		"paused":                {policy(&v1.Policy{OnExhausted: v1.OnExhausted_ON_EXHAUSTED_PAUSE}), ""},
		"unknown end":           {policy(&v1.Policy{OnExhausted: 99}), "policy.on_exhausted"},
		"own dead letters":      {policy(letters("dlq.ours")), ""},
		"by default":            {policy(letters("")), ""},
		"longest dead letters":  {policy(letters("dlq." + long(251))), ""},
		"dead letters too long": {policy(letters("dlq." + long(252))), "policy.dead_letter_topic"},
		"dead letters anywhere": {policy(letters("ours")), "policy.dead_letter_topic"},
		"dead letters, bare":    {policy(letters("dlq.")), "policy.dead_letter_topic"},
		"dead letters of those": {policy(letters("dlq.dlq.in")), "policy.dead_letter_topic"},
		"dlq.dlq itself":        {policy(letters("dlq.dlq")), "policy.dead_letter_topic"},
		"dead letters in space": {policy(letters("dlq.a b")), "policy.dead_letter_topic"},
		"a circle": {func(r *v1.CreateWorkerRequest) {
			r.Topics, r.Policy = []string{"in", "dlq.in"}, letters("dlq.in")
		}, "policy.dead_letter_topic"},
		"its own commands": {func(r *v1.CreateWorkerRequest) { r.Id, r.Topics = "me", []string{"in", "wrk.echo.command.me"} }, "topics[1]"},
		"its own redrives": {func(r *v1.CreateWorkerRequest) { r.Id, r.Topics = "me", []string{"wrk.echo.redrive.me"} }, "topics[0]"},
		"its own replies":  {func(r *v1.CreateWorkerRequest) { r.Id, r.Topics = "me", []string{"wrk.echo.reply.me"} }, "topics[0]"},
		"another's":        {func(r *v1.CreateWorkerRequest) { r.Id, r.Topics = "me", []string{"wrk.echo.command.you"} }, ""},
		"all of it wrong": {policy(&v1.Policy{HandlerTimeout: d(0), HandlerGrace: d(0), MaxAttempts: 1 << 31, Backoff: d(0), MaxBackoff: d(0),
			MaxCrashes: 1 << 30, OnExhausted: -1, DeadLetterTopic: new("x")}),
			"policy.handler_timeout,policy.handler_grace,policy.backoff,policy.max_backoff,policy.max_attempts,policy.max_crashes,policy.on_exhausted,policy.dead_letter_topic"},
		"first without start": {replay(first, nil), "replay.first"},
		"first at the tail":   {replay(first, &v1.Start{At: &v1.Start_Tail{Tail: true}}), "replay.first"},
		"first, not earliest": {replay(first, &v1.Start{At: &v1.Start_Earliest{}}), "replay.first.earliest"},
		"first at a time":     {replay(first, &v1.Start{At: &v1.Start_Time{Time: timestamppb.Now()}}), ""},
		"first, no such time": {replay(first, &v1.Start{At: &v1.Start_Time{Time: &timestamppb.Timestamp{Seconds: 1 << 60}}}), "replay.first.time"},
		"first at a position": {replay(first, &v1.Start{At: &v1.Start_Position{Position: "1-0"}}), ""},
		"first, no position":  {replay(first, &v1.Start{At: &v1.Start_Position{Position: "1"}}), "replay.first.position"},
		"off with a start":    {replay(v1.ReplayMode_REPLAY_MODE_OFF, &v1.Start{}), "replay.first"},
		"unset with a start":  {replay(0, &v1.Start{At: &v1.Start_Earliest{Earliest: true}}), "replay.first"},
		"unknown replay":      {replay(77, nil), "replay.mode"},
		"several things": {func(r *v1.CreateWorkerRequest) {
			r.Id, r.Type, r.Topics = "*", "", []string{"a b"}
			r.Policy = &v1.Policy{MaxAttempts: 1 << 30}
		}, "id,type,topics[0],policy.max_attempts"},
	} {
		t.Run(name, func(t *testing.T) {
			req := &v1.CreateWorkerRequest{Type: "echo", Topics: []string{"in"}}
			c.change(req)
			_, err := m.CreateWorker(t.Context(), req)
			if c.fields == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			wantError(t, err, codes.InvalidArgument, rpcerr.InvalidField)
			info := rpcerr.Info(err).GetMetadata()
			if !strings.HasPrefix(info["field"], c.fields) || info["rule"] == "" || info["fix"] == "" {
				t.Errorf("%v: facts %v, want field %s", err, info, c.fields)
			}
			if len(err.Error()) > 4000 {
				t.Errorf("%d bytes of error", len(err.Error()))
			}
		})
	}
	if n := len(w.keys("worker/")); n == 0 {
		t.Error("nothing was stored")
	}
}

func topics(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint("t", i)
	}
	return list
}

func TestDefaultsAreFilledIn(t *testing.T) {
	m := newWorld(t).manager()
	alone, inGroup := m.create(t, dedicated("")), m.create(t, member("", "g", 2, 1))
	if alone.GetId() == "" || alone.GetId() == inGroup.GetId() {
		t.Errorf("ids %q and %q", alone.GetId(), inGroup.GetId())
	}
	want := &v1.Policy{HandlerTimeout: durationpb.New(30 * time.Second), HandlerGrace: durationpb.New(2 * time.Second),
		MaxAttempts: 3, Backoff: durationpb.New(200 * time.Millisecond), MaxBackoff: durationpb.New(time.Minute),
		MaxCrashes: 3, OnExhausted: v1.OnExhausted_ON_EXHAUSTED_DEAD_LETTER}
	if !proto.Equal(alone.GetPolicy(), want) {
		t.Errorf("policy %v", alone.GetPolicy())
	}
	if alone.GetReplay().GetMode() != v1.ReplayMode_REPLAY_MODE_CURSOR || inGroup.GetReplay().GetMode() != v1.ReplayMode_REPLAY_MODE_OFF {
		t.Errorf("replay %v and %v", alone.GetReplay(), inGroup.GetReplay())
	}
}

func TestBadReferences(t *testing.T) {
	m := newWorld(t).manager()
	get := func(ref string) error {
		_, err := m.GetWorker(t.Context(), &v1.GetWorkerRequest{Worker: ref})
		return err
	}
	wantError(t, get(""), codes.InvalidArgument, rpcerr.InvalidField, "worker")
	wantError(t, get("nobody"), codes.NotFound, rpcerr.NotFound, "nobody")
	wantError(t, get("no body"), codes.NotFound, rpcerr.NotFound)
	wantError(t, get(strings.Repeat("x", 200)), codes.InvalidArgument, rpcerr.InvalidField)
	wantError(t, get("\x00"), codes.InvalidArgument, rpcerr.InvalidField)

	_, err := m.GetGroup(t.Context(), &v1.GetGroupRequest{})
	wantError(t, err, codes.InvalidArgument, rpcerr.InvalidField, "group")
	_, err = m.GetGroup(t.Context(), &v1.GetGroupRequest{Group: "a/b"})
	wantError(t, err, codes.InvalidArgument, rpcerr.InvalidField, "group")
	_, err = m.GetGroup(t.Context(), &v1.GetGroupRequest{Group: "none"})
	wantError(t, err, codes.NotFound, rpcerr.NotFound, "none")

	for field, req := range map[string]*v1.ListWorkersRequest{
		"page_size":  {PageSize: 1001},
		"page_token": {PageToken: "%"},
		"state":      {State: 99},
	} {
		_, err := m.ListWorkers(t.Context(), req)
		wantError(t, err, codes.InvalidArgument, rpcerr.InvalidField, field)
	}
}
