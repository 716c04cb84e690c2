package event

import (
	"net/netip"
	"strings"
)

// checkURI holds a value against RFC 3986: a URI reference (section 4.1), or an absolute URI
// (section 4.3, which has a scheme and no fragment). Both are ASCII.
func checkURI(field, s string, absolute bool) error {
	problem := uriProblem(s, absolute)
	switch {
	case problem == "":
		return nil
	case absolute:
		return invalid(field, quote(s)+" is not an absolute URI (RFC 3986): "+problem,
			"write it like https://example.com/schema/1 and percent-encode other characters")
	}
	return invalid(field, quote(s)+" is not a URI reference (RFC 3986): "+problem,
		"write it like /sensors/12 or https://example.com/a and percent-encode other characters")
}

// Character classes of RFC 3986; pct-encoded is handled apart.
const (
	uriRegName  = 1 << iota // unreserved and sub-delims
	uriUserInfo             // and ":"
	uriPath                 // and ":" "@" "/"
	uriQuery                // and "?": query and fragment
)

var uriClass = func() (class [256]uint8) {
	set := func(chars string, bits uint8) {
		for i := range len(chars) {
			class[chars[i]] |= bits
		}
	}
	const alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	set(alnum+"-._~!$&'()*+,;=", uriRegName|uriUserInfo|uriPath|uriQuery)
	set(":", uriUserInfo|uriPath|uriQuery)
	set("@/", uriPath|uriQuery)
	set("?", uriQuery)
	return class
}()

func uriProblem(s string, absolute bool) string {
	rest, hasScheme := s, false
	if i := strings.IndexAny(s, ":/?#"); i >= 0 && s[i] == ':' {
		if !isScheme(s[:i]) {
			return quote(s[:i]) + " before the first colon is not a scheme"
		}
		rest, hasScheme = s[i+1:], true
	}
	if absolute && !hasScheme {
		return "it has no scheme"
	}
	rest, fragment, found := strings.Cut(rest, "#")
	if found && absolute {
		return "a fragment (#) is not allowed"
	}
	if problem := uriChars(fragment, uriQuery); problem != "" {
		return problem
	}
	rest, query, _ := strings.Cut(rest, "?")
	if problem := uriChars(query, uriQuery); problem != "" {
		return problem
	}
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		authority := after
		rest = ""
		if i := strings.IndexByte(after, '/'); i >= 0 {
			authority, rest = after[:i], after[i:]
		}
		if problem := authorityProblem(authority); problem != "" {
			return problem
		}
	}
	return uriChars(rest, uriPath)
}

func isScheme(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c|0x20 >= 'a' && c|0x20 <= 'z':
		case i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.'):
		default:
			return false
		}
	}
	return s != ""
}

func authorityProblem(s string) string {
	if user, host, ok := strings.Cut(s, "@"); ok {
		if problem := uriChars(user, uriUserInfo); problem != "" {
			return problem
		}
		s = host
	}
	var host, port string
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 || !isIPLiteral(s[1:end]) {
			return "the host in brackets is not an IPv6 address"
		}
		port = s[end+1:]
		if port != "" && port[0] != ':' {
			return "there is more than a port after the host in brackets"
		}
		port = strings.TrimPrefix(port, ":")
	} else {
		host, port, _ = strings.Cut(s, ":")
	}
	for i := range len(port) {
		if port[i] < '0' || port[i] > '9' {
			return "the port " + quote(port) + " is not a number"
		}
	}
	return uriChars(host, uriRegName)
}

func isIPLiteral(s string) bool {
	if s != "" && s[0]|0x20 == 'v' { // IPvFuture
		version, address, ok := strings.Cut(s[1:], ".")
		if !ok || version == "" || address == "" || strings.ContainsRune(address, '%') {
			return false
		}
		for i := range len(version) {
			if !isHex(version[i]) {
				return false
			}
		}
		return uriChars(address, uriUserInfo) == ""
	}
	a, err := netip.ParseAddr(s)
	return err == nil && a.Is6() && a.Zone() == ""
}

func uriChars(s string, class uint8) string {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if uriClass[c]&class != 0 {
			continue
		}
		switch {
		case c != '%':
			if c >= 0x80 {
				return "it has characters outside ASCII"
			}
			return quote(string(rune(c))) + " is not allowed there"
		case i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2]):
			return "% is not followed by two hexadecimal digits"
		}
		i += 2
	}
	return ""
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f'
}
