package resptest

import (
	"strings"

	"github.com/redburst/redburst/resp"
)

// Stream is well-formed from its first byte to its last.
type Stream struct {
	Name  string
	Input string   // the bytes
	Want  []string // the frames, as by Dump
}

// Streams has every type in every form, and well-formed streams at which other
// clients failed.
var Streams = []Stream{
	{"simple string", "+OK\r\n", []string{`+"OK"`}},
	{"simple string, empty", "+\r\n", []string{`+""`}},
	{"simple string with other control bytes", "+a\tb\x00c\r\n", []string{`+"a\tb\x00c"`}},
	{"simple error", "-ERR unknown command\r\n", []string{`-"ERR unknown command"`}},
	{"integer", ":1234567890\r\n", []string{`:"1234567890"`}},
	{"integer of one digit", ":7\r\n", []string{`:"7"`}},
	{"integer, negative", ":-42\r\n", []string{`:"-42"`}},
	{"integer with a plus sign", ":+42\r\n", []string{`:"+42"`}},
	{"integer, zeros", ":0\r\n:-0\r\n:+0\r\n", []string{`:"0"`, `:"-0"`, `:"+0"`}},
	{"integer, greatest", ":9223372036854775807\r\n", []string{`:"9223372036854775807"`}},
	{"integer, least", ":-9223372036854775808\r\n", []string{`:"-9223372036854775808"`}},
	{"bulk string", "$5\r\nhello\r\n", []string{`$"hello"`}},
	{"bulk string, empty", "$0\r\n\r\n", []string{`$""`}},
	{"bulk string of CR LF", "$2\r\n\r\n\r\n", []string{`$"\r\n"`}},
	{"bulk string that looks like a frame", "$7\r\n$-1\r\n+O\r\n", []string{`$"$-1\r\n+O"`}},
	{"bulk strings with lengths of two and three digits", "$12\r\nhello, world\r\n$100\r\n" + strings.Repeat("x", 100) + "\r\n",
		[]string{`$"hello, world"`, `$"` + strings.Repeat("x", 100) + `"`}},
	{"null bulk string", "$-1\r\n", []string{`$null`}},
	{"array", "*2\r\n$3\r\nfoo\r\n:1\r\n", []string{`*[$"foo" :"1"]`}},
	{"array, empty", "*0\r\n", []string{`*[]`}},
	{"array, nested", "*3\r\n*2\r\n:1\r\n*0\r\n*-1\r\n*1\r\n*1\r\n+x\r\n", []string{`*[*[:"1" *[]] *null *[*[+"x"]]]`}},
	{"array of arrays of nulls", "*2\r\n*3\r\n*-1\r\n$-1\r\n_\r\n*0\r\n", []string{`*[*[*null $null _null] *[]]`}},
	{"null array", "*-1\r\n", []string{`*null`}},
	{"null", "_\r\n", []string{`_null`}},
	{"booleans", "#t\r\n#f\r\n", []string{`#"t"`, `#"f"`}},
	{"doubles", ",1\r\n,-1.5\r\n,+0.25\r\n,1e6\r\n,1.5E-300\r\n,10e+2\r\n,00.10\r\n",
		[]string{`,"1"`, `,"-1.5"`, `,"+0.25"`, `,"1e6"`, `,"1.5E-300"`, `,"10e+2"`, `,"00.10"`}},
	{"doubles at the ends of their range", ",1.7976931348623157e308\r\n,-0.17976931348623158079e+309\r\n,1e-999\r\n,-0e999\r\n,1" + zeros(400) + "e-400\r\n,0." + zeros(400) + "1E401\r\n",
		[]string{`,"1.7976931348623157e308"`, `,"-0.17976931348623158079e+309"`, `,"1e-999"`, `,"-0e999"`, `,"1` + zeros(400) + `e-400"`, `,"0.` + zeros(400) + `1E401"`}},
	{"doubles that are no numbers", ",inf\r\n,-inf\r\n,nan\r\n,-nan\r\n,NAN\r\n,nan(0x7)\r\n", []string{`,"inf"`, `,"-inf"`, `,"nan"`, `,"-nan"`, `,"NAN"`, `,"nan(0x7)"`}},
	{"big numbers", "(3492890328409238509324850943850943825024385\r\n(-1\r\n(+0\r\n",
		[]string{`("3492890328409238509324850943850943825024385"`, `("-1"`, `("+0"`}},
	{"bulk error", "!21\r\nSYNTAX invalid syntax\r\n", []string{`!"SYNTAX invalid syntax"`}},
	{"verbatim string", "=15\r\ntxt:Some string\r\n", []string{`=txt:"Some string"`}},
	{"verbatim string, empty", "=4\r\nmkd:\r\n", []string{`=mkd:""`}},
	{"map", "%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n", []string{`%[+"a" :"1" +"b" *[:"2"]]`}},
	{"map, empty", "%0\r\n", []string{`%[]`}},
	{"map with keys that cannot be hashed (go-redis 3873)", "%2\r\n*1\r\n:1\r\n+v\r\n%1\r\n+k\r\n_\r\n+w\r\n",
		[]string{`%[*[:"1"] +"v" %[+"k" _null] +"w"]`}},
	{"set", "~3\r\n+a\r\n#t\r\n,1\r\n", []string{`~[+"a" #"t" ,"1"]`}},
	{"push between replies", "+OK\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n:1\r\n",
		[]string{`+"OK"`, `>[$"invalidate" *[$"k"]]`, `:"1"`}},
	{"push whose name is cut anywhere (go-redis 3839)", ">3\r\n$7\r\nmessage\r\n$7\r\nchannel\r\n$5\r\nhello\r\n",
		[]string{`>[$"message" $"channel" $"hello"]`}},
	{"push of 35 bytes with nothing behind it (go-redis 3935)", ">3\r\n$9\r\nsubscribe\r\n$6\r\naaaaaa\r\n:1\r\n",
		[]string{`>[$"subscribe" $"aaaaaa" :"1"]`}},
	{"nothing of what follows a null belongs to it (go-redis 3874)", "$-1\r\n$5\r\nhello\r\n*-1\r\n$5\r\nhello\r\n_\r\n$5\r\nhello\r\n",
		[]string{`$null`, `$"hello"`, `*null`, `$"hello"`, `_null`, `$"hello"`}},
	{"null in an attribute that is skipped (go-redis 3874)", "|1\r\n+k\r\n$-1\r\n$5\r\nhello\r\n", []string{`$"hello"`}},
	{"null among the elements (go-redis 3922)", "*3\r\n:255\r\n_\r\n:100\r\n:999\r\n", []string{`*[:"255" _null :"100"]`, `:"999"`}},
	{"attribute", "|1\r\n+ttl\r\n:3600\r\n*2\r\n:1\r\n:2\r\n", []string{`*[:"1" :"2"]`}},
	{"attribute, empty", "|0\r\n:1\r\n", []string{`:"1"`}},
	{"attributes in a row and inside one another", "|1\r\n+a\r\n:1\r\n|2\r\n|1\r\n+b\r\n*1\r\n:2\r\n+c\r\n:3\r\n+d\r\n|0\r\n:4\r\n+OK\r\n",
		[]string{`+"OK"`}},
	{"attributes among elements", "*3\r\n:1\r\n|1\r\n+ttl\r\n*2\r\n:1\r\n:2\r\n:2\r\n|0\r\n|0\r\n*1\r\n|1\r\n+k\r\n+v\r\n+x\r\n",
		[]string{`*[:"1" :"2" *[+"x"]]`}},
	{"attribute in front of a push", "|1\r\n+k\r\n+v\r\n>1\r\n+message\r\n+OK\r\n", []string{`>[+"message"]`, `+"OK"`}},
	{"attributes in front of a push's name", ">2\r\n|1\r\n:1\r\n*1\r\n_\r\n|0\r\n$7\r\nmessage\r\n:1\r\n", []string{`>[$"message" :"1"]`}},
	{"push with a verbatim string for its name, or an empty one", ">1\r\n=8\r\ntxt:name\r\n>2\r\n+\r\n_\r\n", []string{`>[=txt:"name"]`, `>[+"" _null]`}},
	{"as deep as the default allows", nest("*1\r\n", 32, "+x\r\n"),
		[]string{strings.Repeat("*[", 32) + `+"x"` + strings.Repeat("]", 32)}},
	{"reply to HELLO 3", "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:12\r\n" +
		"$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n",
		[]string{`%[$"server" $"redis" $"version" $"7.0.15" $"proto" :"3" $"id" :"12" $"mode" $"standalone" $"role" $"master" $"modules" *[]]`}},
}

// Hostile is a stream with a fault, and the offset of the byte at fault.
type Hostile struct {
	Name   string
	Input  string     // the bytes
	Fault  resp.Fault // what is wrong
	Offset int64      // bytes of Input before the one at fault
}

const (
	kib           = 1 << 10
	defaultBulk   = 64 * kib
	defaultElems  = 1 << 16
	defaultFrame  = 16 * defaultBulk
	maxInt64      = "9223372036854775807"
	maxInt64Plus2 = "9223372036854775809"
)

// HostileStreams has what a reader with the default limits must refuse: the
// streams that broke other clients, with the issue that reported each, and one row
// or more for each rule of the grammar and for each limit.
var HostileStreams = []Hostile{
	// Counts that wrap when doubled, or that ask for memory.
	{"map count that wraps when doubled (go-redis 3877, hiredis 1323)", "%4611686018427387904\r\n", resp.TooMany, 1},
	{"attribute count that wraps when doubled (go-redis 3877)", "|4611686018427387904\r\n", resp.TooMany, 1},
	{"map count that wraps to 2 (hiredis 1323)", "%9223372036854775809\r\n", resp.Overflow, 19},
	{"map that asks for 68 GB (hiredis 1357)", "%4294967295\r\n", resp.TooMany, 1},
	{"array that asks for 34 GB (hiredis 1357)", "*4294967295\r\n", resp.TooMany, 1},
	{"array whose size in bytes wraps at 32 bits (CVE-2021-32765)", "*1073741825\r\n", resp.TooMany, 1},
	{"greatest array", "*" + maxInt64 + "\r\n", resp.TooMany, 1},
	{"greatest set", "~" + maxInt64 + "\r\n", resp.TooMany, 1},
	{"greatest push", ">" + maxInt64 + "\r\n", resp.TooMany, 1},

	// Lengths that wrap when the line end is added, or that panic in make.
	{"greatest bulk length (hiredis 1358)", "$" + maxInt64 + "\r\n", resp.TooLong, 1},
	{"bulk length beyond 64 bits (hiredis 1358)", "$" + maxInt64Plus2 + "\r\n", resp.Overflow, 19},
	{"bulk length that wraps at 64 bits to 5", "$18446744073709551621\r\nhello\r\n", resp.Overflow, 20},
	{"bulk length -2 (valkey-go 183, beats 50288)", "$-2\r\n", resp.BadLength, 2},
	{"array length -2 (valkey-go 183)", "*-2\r\n", resp.BadLength, 2},
	{"least bulk length", "$-9223372036854775808\r\n", resp.BadLength, 2},
	{"bulk length -10", "$-10\r\n\r\n", resp.BadLength, 3},
	{"map length -1 (go-redis 3874)", "%-1\r\n", resp.BadLength, 1},
	{"set length -1", "~-1\r\n", resp.BadLength, 1},
	{"push length -1", ">-1\r\n", resp.BadLength, 1},
	{"attribute length -1", "|-1\r\n", resp.BadLength, 1},
	{"bulk error length -1 (go-redis 3874)", "!-1\r\n", resp.BadLength, 1},
	{"verbatim length -1 (go-redis 3874)", "=-1\r\n", resp.BadLength, 1},

	// Aggregates without end inside one another, of every type.
	{"nested arrays (hiredis 1336 to 1340, ioredis 2108)", nest("*1\r\n", 1000, ""), resp.TooDeep, 32 * 4},
	{"nested maps (redis-rs 1346)", nest("%1\r\n+k\r\n", 1000, ""), resp.TooDeep, 32 * 8},
	{"maps nested in keys (redis-rs 1346)", nest("%1\r\n", 1000, ""), resp.TooDeep, 32 * 4},
	{"nested sets (redis-rs 1346)", nest("~1\r\n", 1000, ""), resp.TooDeep, 32 * 4},
	{"nested attributes (redis-rs 1346)", nest("|1\r\n", 1000, ""), resp.TooDeep, 32 * 4},
	{"arrays nested in a push (redis-rs 1346)", ">2\r\n+x\r\n" + nest("*1\r\n", 1000, ""), resp.TooDeep, 33 * 4},
	{"one too deep, and empty", nest("*1\r\n", 32, "*0\r\n"), resp.TooDeep, 32 * 4},

	// Headers.
	{"no length", "$\r\n\r\n", resp.BadLength, 1},
	{"no count", "*\r\n", resp.BadLength, 1},
	{"length with a plus sign", "$+5\r\nhello\r\n", resp.BadLength, 1},
	{"length with a space", "$ 5\r\nhello\r\n", resp.BadLength, 1},
	{"length with a leading zero", "$05\r\nhello\r\n", resp.BadLength, 2},
	{"length -0", "$-0\r\n\r\n", resp.BadLength, 2},
	{"length with a letter", "$5x\r\nhello\r\n", resp.BadLength, 2},
	{"length in hexadecimal", "$0x5\r\nhello\r\n", resp.BadLength, 2},
	{"length that ends with LF", "$5\nhello\n", resp.BadLength, 2},
	{"length that ends with CR CR", "$5\r\rhello\r\n", resp.BadLineEnd, 3},
	{"length of two digits that ends with CR CR", "$12\r\rhello\r\n", resp.BadLineEnd, 4},
	{"null that ends with LF", "$-1\n", resp.BadLength, 3},
	{"null that ends with CR CR", "$-1\r\r", resp.BadLineEnd, 4},
	{"zeros without end", "$" + strings.Repeat("0", 100*kib), resp.BadLength, 2},
	{"digits without end", "*" + strings.Repeat("1", 100*kib), resp.Overflow, 20},

	// Payloads.
	{"payload longer than announced", "$5\r\nhello!\r\n", resp.BadLineEnd, 9},
	{"payload that ends with LF", "$5\r\nhello\n\n", resp.BadLineEnd, 9},
	{"payload that ends with CR CR", "$5\r\nhello\r\r", resp.BadLineEnd, 10},
	{"payload shorter than announced", "$5\r\nhell\r\n+OK\r\n", resp.BadLineEnd, 9},
	{"verbatim string without format", "=3\r\ntxt\r\n", resp.BadVerbatim, 1},
	{"verbatim string without colon", "=8\r\ntxt-text\r\n", resp.BadVerbatim, 7},

	// Lines.
	{"LF in a simple string", "+O\nK\r\n", resp.BadLineEnd, 2},
	{"CR in a simple string", "+O\rK\r\n", resp.BadLineEnd, 3},
	{"CR CR LF", "+OK\r\r\n", resp.BadLineEnd, 4},
	{"LF before a CR that is at fault too", "+O\nK\rx", resp.BadLineEnd, 2},
	{"LF in an error", "-ERR\n\r\n", resp.BadLineEnd, 4},
	{"simple string without end", "+" + strings.Repeat("x", 100*kib), resp.TooLong, 1 + defaultBulk},
	{"error without end", "-" + strings.Repeat("x", 100*kib), resp.TooLong, 1 + defaultBulk},
	{"double without end", ",1." + strings.Repeat("0", 100*kib), resp.TooLong, 1 + defaultBulk},
	{"big number without end", "(" + strings.Repeat("1", 100*kib), resp.TooLong, 1 + defaultBulk},

	// Scalars.
	{"integer without digits", ":\r\n", resp.BadInteger, 1},
	{"integer of a sign", ":-\r\n", resp.BadInteger, 2},
	{"integer with two signs", ":--1\r\n", resp.BadInteger, 2},
	{"integer with a leading zero", ":007\r\n", resp.BadInteger, 2},
	{"integer with a fraction", ":1.0\r\n", resp.BadInteger, 2},
	{"integer with a letter", ":12x\r\n", resp.BadInteger, 3},
	{"integer that ends with LF", ":1\n", resp.BadInteger, 2},
	{"integer that ends with CR CR", ":1\r\r", resp.BadLineEnd, 3},
	{"integer zeros without end", ":" + strings.Repeat("0", 100*kib), resp.BadInteger, 2},
	{"integer beyond 64 bits", ":9223372036854775808\r\n", resp.Overflow, 19},
	{"negative integer beyond 64 bits", ":-9223372036854775809\r\n", resp.Overflow, 20},
	{"integer of 21 digits", ":123456789012345678901\r\n", resp.Overflow, 20},
	{"null with content", "_null\r\n", resp.BadLineEnd, 1},
	{"null that ends with LF only", "_\n", resp.BadLineEnd, 1},
	{"boolean without content", "#\r\n", resp.BadBoolean, 1},
	{"boolean of a word", "#true\r\n", resp.BadBoolean, 2},
	{"boolean in upper case", "#T\r\n", resp.BadBoolean, 1},
	{"double without digits", ",\r\n", resp.BadDouble, 1},
	{"double without integral part", ",.5\r\n", resp.BadDouble, 1},
	{"double without fraction", ",1.\r\n", resp.BadDouble, 3},
	{"double without exponent", ",1e\r\n", resp.BadDouble, 3},
	{"double with a space", ",1 \r\n", resp.BadDouble, 2},
	{"double in hexadecimal", ",0x1p4\r\n", resp.BadDouble, 2},
	{"double with an underscore", ",1_000\r\n", resp.BadDouble, 2},
	{"infinity in Go's words", ",+Inf\r\n", resp.BadDouble, 2},
	{"infinity with a plus sign", ",+inf\r\n", resp.BadDouble, 2},
	{"more behind NaN", ",NaNs\r\n", resp.BadDouble, 1},
	{"double beyond float64", ",1e999\r\n", resp.BadDouble, 1},
	{"negative double beyond float64", ",-1e400\r\n", resp.BadDouble, 1},
	{"double of 310 digits", ",1" + zeros(309) + "\r\n", resp.BadDouble, 1},
	{"double beyond float64 by its last digit", ",1.797693134862315808e308\r\n", resp.BadDouble, 1},
	{"double beyond float64 with a small exponent", ",1" + zeros(400) + "e-91\r\n", resp.BadDouble, 1},
	{"double beyond float64 with a fraction of zeros", ",0." + zeros(400) + "1e710\r\n", resp.BadDouble, 1},
	{"double with an exponent beyond 64 bits", ",1e18446744073709551617\r\n", resp.BadDouble, 1},
	{"double beyond float64 among elements", "*2\r\n+x\r\n,1e999\r\n", resp.BadDouble, 9},
	{"big number without digits", "(\r\n", resp.BadNumber, 1},
	{"big number of a sign", "(-\r\n", resp.BadNumber, 2},
	{"big number with a letter", "(12e3\r\n", resp.BadNumber, 3},

	// Types.
	{"streamed string", "$?\r\n;4\r\nabcd\r\n;0\r\n", resp.Streamed, 1},
	{"chunk of a streamed string", ";4\r\nabcd\r\n", resp.Streamed, 0},
	{"streamed array", "*?\r\n:1\r\n.\r\n", resp.Streamed, 1},
	{"streamed set", "~?\r\n:1\r\n.\r\n", resp.Streamed, 1},
	{"streamed map", "%?\r\n:1\r\n:2\r\n.\r\n", resp.Streamed, 1},
	{"end of a streamed aggregate", ".\r\n", resp.Streamed, 0},
	{"push in an array", "*1\r\n>1\r\n+message\r\n", resp.NestedPush, 4},
	{"push in a push", ">2\r\n+message\r\n>1\r\n+message\r\n", resp.NestedPush, 14},
	{"push in an attribute", "|1\r\n+k\r\n>1\r\n+v\r\n+OK\r\n", resp.NestedPush, 8},
	{"push without elements", ">0\r\n", resp.BadPush, 1},
	{"push without elements in the second frame", "+OK\r\n>0\r\n", resp.BadPush, 6},
	{"push with an integer for its name", ">2\r\n:1\r\n+x\r\n", resp.BadPush, 4},
	{"push with an error for its name", ">1\r\n-ERR x\r\n", resp.BadPush, 4},
	{"push with a bulk error for its name", ">1\r\n!5\r\nERR x\r\n", resp.BadPush, 4},
	{"push with a null for its name", ">1\r\n_\r\n", resp.BadPush, 4},
	{"push with a null bulk string for its name", ">1\r\n$-1\r\n", resp.BadPush, 4},
	{"push with a null array for its name", ">1\r\n*-1\r\n", resp.BadPush, 4},
	{"push with a boolean for its name", ">1\r\n#t\r\n", resp.BadPush, 4},
	{"push with a double for its name", ">1\r\n,1\r\n", resp.BadPush, 4},
	{"push with a big number for its name", ">1\r\n(1\r\n", resp.BadPush, 4},
	{"push with an array for its name", ">2\r\n*1\r\n+x\r\n+y\r\n", resp.BadPush, 4},
	{"push with an empty array for its name", ">2\r\n*0\r\n+y\r\n", resp.BadPush, 4},
	{"push with a map for its name", ">1\r\n%0\r\n", resp.BadPush, 4},
	{"push with a push for its name", ">1\r\n>1\r\n+x\r\n", resp.BadPush, 4},
	{"attributes in front of a push whose name is none", "|1\r\n+k\r\n+v\r\n>1\r\n:1\r\n", resp.BadPush, 16},
	{"attributes in front of a push's name that is none", ">1\r\n|1\r\n+k\r\n+v\r\n|0\r\n:1\r\n", resp.BadPush, 20},
	{"attributes in front of a push's name that is null", ">1\r\n|1\r\n+k\r\n+v\r\n$-1\r\n", resp.BadPush, 16},
	{"inline command", "PING\r\n", resp.BadKind, 0},
	{"empty line", "\r\n", resp.BadKind, 0},
	{"zero byte", "\x00", resp.BadKind, 0},
	{"answer of a web server", "HTTP/1.1 400 Bad Request\r\n\r\n", resp.BadKind, 0},
	{"alert of a TLS server", "\x15\x03\x01\x00\x02\x02\x46", resp.BadKind, 0},
	{"end of a frame that was longer", "+OK\r\n\r\n", resp.BadKind, 5},

	// Limits.
	{"bulk string beyond the limit", "$65537\r\n", resp.TooLong, 1},
	{"bulk error beyond the limit", "!65537\r\n", resp.TooLong, 1},
	{"verbatim string beyond the limit", "=65537\r\n", resp.TooLong, 1},
	{"array beyond the limit", "*65537\r\n", resp.TooMany, 1},
	{"map beyond the limit", "%32769\r\n", resp.TooMany, 1},
	{"arrays beyond the limit together", "*2\r\n*30000\r\n" + strings.Repeat("_\r\n", 30000) + "*40000\r\n", resp.TooMany, 4 + 8 + 90000 + 1},
	{"element beyond the limit", "*65536\r\n*1\r\n", resp.TooMany, 9},
	{"attributes without end", strings.Repeat("|0\r\n", defaultElems+1), resp.TooMany, 4*defaultElems + 1},
	{"attributes among elements without end", "*1\r\n" + strings.Repeat("|0\r\n", defaultElems), resp.TooMany, 4*defaultElems + 1},
	{"bulk string beyond the limit of the frame", "*17\r\n" + strings.Repeat("$65536\r\n"+strings.Repeat("x", defaultBulk)+"\r\n", 17),
		resp.TooLong, 5 + 15*(8+defaultBulk+2) + 1},
	{"line beyond the limit of the frame", "*17\r\n" + strings.Repeat("+"+strings.Repeat("x", defaultBulk)+"\r\n", 17),
		resp.TooLong, defaultFrame},

	// In the middle of a stream.
	{"fault in the second frame", "+OK\r\n$-2\r\n", resp.BadLength, 7},
	{"fault in an element", "*3\r\n:1\r\n$-1\r\n:x\r\n", resp.BadInteger, 14},
	{"fault in a nested element", "*2\r\n%1\r\n+k\r\n~1\r\n#x\r\n", resp.BadBoolean, 17},
	{"fault in an attribute", "|1\r\n+k\r\n:x\r\n+OK\r\n", resp.BadInteger, 9},
	{"desync: the rest of a frame cut short", "*2\r\n$3\r\nfoo\r\n$3\r\nba\r\n+OK\r\n", resp.BadLineEnd, 20},
}
