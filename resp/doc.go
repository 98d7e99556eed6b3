// Package resp is the wire format of Redis: bytes in, values out. It does no
// I/O, knows no clock and imports the standard library alone.
//
// A [Reader] is fed by its caller, who reads from a socket straight into the
// reader's buffer and then takes whole frames out:
//
//	r := resp.NewReader(4096, resp.Limits{})
//	for {
//		n, err := conn.Read(r.Free(1024))
//		r.Advance(n)
//		for {
//			v, err := r.Next()
//			if err == resp.ErrNeedMore {
//				break
//			}
//			...
//		}
//	}
//
// RESP2 and RESP3 are read alike; nothing has to be switched when a connection
// changes from one to the other. Decoding allocates nothing: a [Value] borrows
// the reader's buffer, and an aggregate is walked in place by an [Iter].
//
// The Append functions write commands and replies to the end of a byte slice.
//
// # What is accepted
//
// What [Reader.Next] returns has been checked to its last byte, nested values
// included. The rules are those of the published protocol, and where it is
// loose those of Redis itself:
//
//   - A line ends with CR LF, and holds neither CR nor LF.
//   - A length is digits without a sign or a superfluous leading zero. The only
//     negative length is -1, for $ and *, which means null.
//   - An integer is an optional sign and digits without a superfluous leading
//     zero, and fits in 64 bits.
//   - A double is digits, optionally with a sign, a fraction and an exponent,
//     and rounds to a finite float64; or it is inf, -inf, nan, or the -nan that
//     Redis before 7.2 can send.
//   - A big number is an optional sign and digits.
//   - A push stands alone. Inside another frame it is a [NestedPush] fault, so
//     no element can be mistaken for a message that was not asked for.
//   - The first element of a push is a simple, bulk or verbatim string, which
//     names its kind. A push without one is a [BadPush] fault.
//   - Streamed types ($? *? ~? %? ; .) are a [Streamed] fault.
//   - Attributes are checked and counted against the limits of the value that
//     follows them, then skipped, wherever they stand.
//
// Anything else is a [*SyntaxError]. The stream has then lost its framing and
// cannot be read any further.
package resp
