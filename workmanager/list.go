package workmanager

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"

	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

const (
	defaultListSize = 100
	maxListSize     = 1000
	observedAtOnce  = 100
)

// ListWorkers returns the workers that match all of the filters, in the order of their ids. A page
// token is a place in that order: workers that come and go meanwhile move no others.
func (m *Manager) ListWorkers(ctx context.Context, req *turnlanev1.ListWorkersRequest) (*turnlanev1.ListWorkersResponse, error) {
	var p problems
	size := int(req.GetPageSize())
	switch {
	case size == 0:
		size = defaultListSize
	case size > maxListSize:
		p.add("page_size", fmt.Sprintf("%d is more than %d", size, maxListSize), "ask for less, and for further pages by next_page_token")
	}
	after, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil || len(after) > 0 && !validID(string(after)) {
		p.add("page_token", "is not one that was given out", "use next_page_token of the page before, or leave it out")
	}
	if state := req.GetState(); turnlanev1.WorkerState_name[int32(state)] == "" {
		p.add("state", fmt.Sprintf("%d is unknown", state), "use STARTING, RUNNING, STOPPING, STOPPED or FAILED")
	}
	if err := p.err(); err != nil {
		return nil, err
	}

	resp := &turnlanev1.ListWorkersResponse{}
	err = m.pages(ctx, catalog.WorkerPrefix, string(after), func(items []store.Item) error {
		matching := match(req, items)
		for len(matching) > 0 {
			// One more than fits, to know whether there is another page. Without a filter on the state
			// no more need be observed.
			n := size + 1 - len(resp.Workers)
			if req.GetState() != unknown {
				n = max(n, observedAtOnce)
			}
			some := matching[:min(len(matching), n)]
			matching = matching[len(some):]
			seen, err := m.observeAll(ctx, some, false)
			if err != nil {
				return err
			}
			for i, w := range some {
				if state := req.GetState(); state != unknown && state != seen[i].state {
					continue
				}
				if len(resp.Workers) == size {
					last := resp.Workers[size-1].GetId()
					resp.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(last))
					return errEnough
				}
				resp.Workers = append(resp.Workers, show(w, seen[i]))
			}
		}
		return nil
	})
	if err != nil {
		return nil, rpcerr.From(err)
	}
	return resp, nil
}

// match returns the records that pass the filters, but for that on the observed state.
func match(req *turnlanev1.ListWorkersRequest, items []store.Item) []record {
	var matching []record
next:
	for _, item := range items {
		w, err := catalog.DecodeWorker(item)
		switch {
		case err != nil, w.GetDeleted(),
			req.GetType() != "" && req.GetType() != w.GetType(),
			req.GetGroup() != "" && req.GetGroup() != w.GetGroup(),
			req.GetTopic() != "" && !slices.Contains(w.GetTopics(), req.GetTopic()):
			continue
		}
		for key, value := range req.GetTags() {
			if has, ok := w.GetTags()[key]; !ok || has != value {
				continue next
			}
		}
		matching = append(matching, record{w, item.Revision})
	}
	return matching
}
