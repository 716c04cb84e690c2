package event

import "strings"

// mediaTypeProblem holds a value against the grammar of RFC 2045 section 5.1, which RFC 2046 uses:
// type "/" subtype *(";" attribute "=" (token / quoted-string)), with white space around the
// semicolons. Comments are not read, and "*" is a range rather than a type.
func mediaTypeProblem(s string) string {
	i := tokenEnd(s, 0)
	if i == 0 || i == len(s) || s[i] != '/' {
		return "want type/subtype"
	}
	end := tokenEnd(s, i+1)
	if end == i+1 {
		return "the subtype is missing"
	}
	if strings.IndexByte(s[:end], '*') >= 0 {
		return "a wildcard is not a type"
	}
	for i = end; i < len(s); {
		if i = spaceEnd(s, i); i == len(s) {
			return "it ends with white space"
		}
		if s[i] != ';' {
			return quote(string(rune(s[i]))) + " is not allowed there"
		}
		i = spaceEnd(s, i+1)
		end := tokenEnd(s, i)
		if end == i || end == len(s) || s[end] != '=' {
			return "a parameter is not name=value"
		}
		i = end + 1
		if i < len(s) && s[i] == '"' {
			if i = quotedEnd(s, i); i < 0 {
				return "a quoted parameter value is broken"
			}
			continue
		}
		if end = tokenEnd(s, i); end == i {
			return "a parameter has no value"
		}
		i = end
	}
	return ""
}

// tokenEnd returns the end of the RFC 2045 token that starts at i.
func tokenEnd(s string, i int) int {
	for i < len(s) && s[i] > ' ' && s[i] < 0x7F && strings.IndexByte(`()<>@,;:\"/[]?=`, s[i]) < 0 {
		i++
	}
	return i
}

func spaceEnd(s string, i int) int {
	for i < len(s) && (s[i] == ' ' || s[i] == '\t') {
		i++
	}
	return i
}

// quotedEnd returns the end of the quoted string that starts at i, or -1.
func quotedEnd(s string, i int) int {
	for i++; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			i++
			if i == len(s) || s[i] < ' ' || s[i] >= 0x7F {
				return -1
			}
		case c < ' ' || c >= 0x7F:
			return -1
		}
	}
	return -1
}

// mediaType cuts the parameters off.
func mediaType(contentType string) (mediaType, params string) {
	mediaType, params, _ = strings.Cut(contentType, ";")
	return strings.TrimRight(mediaType, " \t"), params
}

// IsJSON reports whether a datacontenttype declares JSON: */json or *+json, in any case, or absent,
// which CloudEvents reads as application/json.
func IsJSON(dataContentType string) bool {
	if dataContentType == "" || dataContentType == "application/json" {
		return true
	}
	t, _ := mediaType(dataContentType)
	_, subtype, _ := strings.Cut(t, "/")
	return strings.EqualFold(subtype, "json") ||
		len(subtype) >= 5 && strings.EqualFold(subtype[len(subtype)-5:], "+json")
}

// isText reports whether bytes of that type are to be shown as text: text/*, XML and a few more, in
// UTF-8 or ASCII.
func isText(contentType string) bool {
	t, params := mediaType(contentType)
	t = strings.ToLower(t)
	switch {
	case strings.HasPrefix(t, "text/"), strings.HasSuffix(t, "/xml"), strings.HasSuffix(t, "+xml"),
		strings.HasSuffix(t, "/yaml"), strings.HasSuffix(t, "+yaml"),
		t == "application/javascript", t == "application/x-www-form-urlencoded",
		t == "application/x-ndjson", t == "application/jsonl":
	default:
		return false
	}
	for p := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(strings.Trim(p, " \t"), "=")
		if strings.EqualFold(name, "charset") {
			switch strings.ToLower(strings.Trim(value, `"`)) {
			case "utf-8", "utf8", "us-ascii":
			default:
				return false
			}
		}
	}
	return true
}
