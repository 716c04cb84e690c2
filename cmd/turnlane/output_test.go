package main

import (
	"strings"
	"testing"
)

func TestJSONIsPrintedAsItWasSent(t *testing.T) {
	for _, c := range []struct {
		name string
		v    any
		want string
	}{
		{"a dead letter", letterView{Event: verbatim(`{"a": 0, "b": [1, 2], "c":"<>&"}`)}, `"event":{"a": 0, "b": [1, 2], "c":"<>&"}}` + "\n"},
		{"lines", letterView{Event: verbatim("{\r\n \"a\": \"\\n\"}")}, `"event":{   "a": "\n"}}` + "\n"},
		{"a reply", sentView{Reply: &replyView{payload: viewPayload([]byte(`[1, "&"]`), "application/json"), Error: "e"}}, `"data":[1, "&"],"error_reason":"","error":"e"}}` + "\n"},
		{"a text reply", sentView{Reply: &replyView{payload: viewPayload([]byte("a\n<b>"), "text/plain")}}, `"data":"a\n<b>","error_reason"`},
		{"a reply without data", sentView{Reply: &replyView{}}, `"datacontenttype":"","error_reason"`},
		{"state", viewState("k", []byte("{\"a\": 1.0E+2}")), `{"key":"k","value":{"a": 1.0E+2}}` + "\n"},
		{"state of bytes", viewState("k", []byte{0xff}), `{"key":"k","value_base64":"/w=="}` + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			if err := writeJSON(&out, c.v); err != nil {
				t.Fatal(err)
			}
			if got := out.String(); !strings.Contains(got, c.want) || strings.Count(got, "\n") != 1 {
				t.Errorf("got %q, want %q in it, on one line", got, c.want)
			}
		})
	}
}
