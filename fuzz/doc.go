// Package fuzz has the fuzz targets and their corpora in testdata/fuzz. go test
// runs every target over its corpus; make fuzz searches for new inputs, and make
// fuzz TARGET=FuzzSplit with one target.
//
//   - FuzzNext: whatever arrives, the reader does not panic, and it allocates no
//     more than a fixed factor of the input. What it returns is as package resp
//     says: a double is infinite only if its text says inf, and a push has a name.
//   - FuzzSplit: in whatever pieces a stream arrives, its values, the bytes they
//     take, its error and the offset of the error are the same.
//   - FuzzBeyond: a frame beyond the limits is skipped, and what is said of it is true.
//   - FuzzSkip: to skip an element takes the same bytes as to read it.
//   - FuzzAppend: the reader reads back what the Append functions write.
//   - FuzzReencode: what was read can be written, and is read again as the same.
//   - FuzzTidwall: github.com/tidwall/resp v0.1.1, another reader of RESP2, reads
//     the same from what both accept.
//   - FuzzClient: a real connection survives whatever its server says.
//
// The corpus of FuzzNext has the replies of a redis-server to some hundred
// commands, once in RESP2 and once in RESP3. Each file is named after its command.
// All targets that take a stream, but for FuzzClient, begin with this corpus and with the
// tables of resp/resptest. To record it again, run
//
//	go test ./fuzz -run Recorded -record
//
// # Where tidwall/resp and resp disagree
//
// The two disagree about what is acceptable, and never about how to read what both
// accept. FuzzTidwall allows these disagreements and fails at any other.
//
//   - RESP3 types. tidwall takes them for an inline command at the top level, and
//     for an error inside an array. That is right for a reader of RESP2. resp does
//     not read inline commands, as no server sends them.
//   - Lengths such as -2. tidwall takes any negative length for null. The protocol
//     has only -1, and a peer that sends another one has lost count. resp is right
//     to refuse it.
//   - Numbers such as +5, 05 and -0 as lengths, and 05 as an integer. tidwall
//     leaves them to strconv, which accepts what Redis and its own clients refuse.
//     resp refuses them too: if one reader accepts them and another does not, the
//     two see different frames in one stream. Both accept the plus sign of an
//     integer, which the protocol allows.
//   - CR or LF alone inside a line. tidwall reads on to the next CR LF. The
//     protocol forbids both in simple strings. resp is right to refuse them: a
//     reader that ends a line at LF would see another frame.
//   - An array of more than 1,048,576 elements. tidwall returns null and no error,
//     and then takes the elements for replies. That is a fault of tidwall; resp
//     refuses what is beyond its limit.
//
// Moreover, tidwall allocates as much as a header announces, up to 512 MiB for
// twelve bytes. So FuzzTidwall keeps large headers from it.
package fuzz
