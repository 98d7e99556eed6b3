package conn

import (
	"bytes"

	"github.com/redburst/redburst/resp"
)

// ErrorCode returns the code of an error reply, such as NOPERM, and "" for any other reply. If a
// command fails inside a script, a server before Redis 7 wraps its error, as in "ERR Error
// running script (...): ... -NOREPLICAS Not enough ...", or says where it was, as in
// "@user_script: 1: -NOREPLICAS Not enough ...". ErrorCode returns the inner code then, here
// NOREPLICAS.
func ErrorCode(v resp.Value) string {
	if !v.IsError() {
		return ""
	}
	code := string(v.ErrorCode())
	if code == "ERR" || code == scriptName {
		code = "ERR"
		if inner := scriptError(ownWords(v)); inner != "" {
			return inner
		}
	}
	return code
}

// scriptName begins an error that a script of a server before Redis 7 has returned and not raised.
const scriptName = "@user_script:"

// scriptError returns the code of the error that a command had inside a script. It is "" if
// the text is no error of a script, or names no code.
func scriptError(text []byte) string {
	if !bytes.Contains(text, []byte("script")) {
		return ""
	}
	if bytes.Contains(text, []byte("The user executing the script can't")) || bytes.Contains(text, []byte("ACL failure in script")) {
		return "NOPERM"
	}
	if !bytes.Contains(text, []byte("rror running script")) && !bytes.HasPrefix(text, []byte(scriptName)) {
		return ""
	}
	for word := range bytes.FieldsSeq(text) {
		if code, ok := bytes.CutPrefix(word, []byte("-")); ok && isCode(code) {
			return string(code)
		}
	}
	return ""
}

func isCode(s []byte) bool {
	for _, c := range s {
		if !(c >= 'A' && c <= 'Z' || c == '_') {
			return false
		}
	}
	return len(s) > 2
}

// IsTransient reports whether an error reply names a state that passes by itself, such as
// LOADING or BUSY. The command was then not executed, and may be sent again.
func IsTransient(v resp.Value) bool {
	switch ErrorCode(v) {
	case "LOADING", "MASTERDOWN", "BUSY", "OOM", "MISCONF", "NOREPLICAS", "TRYAGAIN":
		return true
	}
	return bytes.Contains(ownWords(v), []byte("max number of clients"))
}

// unsupported reports whether an error reply says that there is no such command, in the words of
// a server or of a proxy.
func unsupported(v resp.Value) bool {
	text := bytes.ToLower(ownWords(v))
	for _, words := range []string{"unknown command", "unsupported", "not supported", "disabled"} {
		if v.IsError() && bytes.Contains(text, []byte(words)) {
			return true
		}
	}
	return false
}
