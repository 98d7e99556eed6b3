// Package fuzz has the fuzz targets, their corpora in testdata/fuzz, and nothing
// else. go test runs every target over its corpus; make fuzz goes on from there.
//
//   - FuzzNext: whatever arrives, the reader neither panics nor allocates more
//     than a fixed factor of it, and what it returns is as package resp says: a
//     double is infinite only if it reads inf, and a push has a name.
//   - FuzzSplit: in whatever pieces a stream arrives, its values, the bytes they
//     take, and its error and where it is found are the same.
//   - FuzzSkip: passing over an element takes the bytes that reading it takes.
//   - FuzzAppend: what the Append functions write is read back as it was.
//   - FuzzReencode: what was read can be written, and is then read as the same.
//   - FuzzTidwall: github.com/tidwall/resp v0.1.1, a reader of RESP2 written by
//     others, reads alike whatever both accept.
//   - FuzzClient: a real connection survives whatever its server says.
//
// The corpus of FuzzNext has what a redis-server said to some hundred commands,
// once in RESP2 and once in RESP3; each file is named after its command. All
// targets that take a stream begin with it, and with the tables of
// resp/resptest. It is recorded anew by
//
//	go test ./fuzz -run Recorded -record
//
// # Where tidwall/resp and resp disagree
//
// FuzzTidwall allows these disagreements about what is acceptable, and fails at
// any other. There is none about how to read what both accept.
//
//   - RESP3 types. To tidwall they are, at the top level, an inline command, and
//     an error inside an array. It reads RESP2 and is right in its own terms;
//     resp does not read inline commands, which no server sends.
//   - Lengths such as -2. tidwall takes any negative length for null. The
//     protocol has -1 alone, and a peer that sends another one has lost count:
//     resp is right to refuse it.
//   - Numbers such as +5, 05 and -0 as lengths, and 05 as an integer. tidwall
//     has them parsed by strconv, which accepts what Redis and its own clients
//     refuse. resp refuses them too: leniency here is how two readers of one
//     stream come to see different frames. Both accept the plus sign of an
//     integer, which the protocol allows.
//   - CR or LF alone inside a line. tidwall's lines go on to the next CR LF. The
//     protocol forbids both in simple strings; resp is right to refuse them, as
//     readers that take LF for the end of a line would see another frame.
//   - An array of more than 1,048,576 elements. tidwall returns null and no
//     error, and then takes the elements for replies. That is a fault of
//     tidwall; resp refuses what is beyond its limit.
//
// Moreover tidwall allocates as much as a header announces, up to 512 MiB for
// twelve bytes, so that FuzzTidwall has to keep large headers from it.
package fuzz
