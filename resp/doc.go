// Package resp implements RESP, the wire format of Redis: bytes in, values out.
// It does no I/O, reads no clock and imports only the standard library.
//
// The caller feeds a [Reader]: it reads from a socket straight into the reader's
// buffer, and then takes whole frames out:
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
// A Reader reads RESP2 and RESP3 alike. It need not be told when a connection
// changes from one to the other. Decoding allocates nothing: a [Value] borrows the
// reader's buffer, and an [Iter] walks an aggregate in place.
//
// The Append functions write commands and replies to the end of a byte slice. Each writes one
// value, or the header of an aggregate, and returns the extended slice. But for
// [AppendBigNumber] it allocates only if the slice has no room.
//
// # Compatibility
//
// The exported names of this package follow Semantic Versioning, as those of the module do. A
// later version may add faults and change the texts of errors. Package resptest is for this
// module's own tests, and promises nothing.
//
// # What is accepted
//
// [Reader.Next] checks a frame to its last byte before it returns it, nested
// values included. The rules are those of the specifications:
//
//   - https://redis.io/docs/latest/develop/reference/protocol-spec/ for both versions
//   - https://github.com/redis/redis-specifications/blob/master/protocol/RESP3.md for
//     what is new in RESP3
//
// Where these are loose, the rules are those of Redis itself:
//
//   - A line ends with CR LF, and holds neither CR nor LF.
//   - A length is digits without a sign or a superfluous leading zero. The only
//     negative length is -1, for $ and *, which means null.
//   - An integer is an optional sign and digits without a superfluous leading
//     zero, and fits in 64 bits.
//   - A double is digits, optionally with a sign, a fraction and an exponent,
//     and rounds to a finite float64; or it is inf, -inf, nan, or what C libraries
//     print for it, and Redis before 7.2 can send: -nan, NAN, nan(0x7).
//   - A big number is an optional sign and digits.
//   - A push stands alone. Inside another frame it is a [NestedPush] fault, so
//     that nobody takes an element for a message that answers no command.
//   - The first element of a push is a simple, bulk or verbatim string, which
//     names its kind. A push without one is a [BadPush] fault.
//   - Streamed types ($? *? ~? %? ; .) are a [Streamed] fault.
//   - Attributes are checked, counted against the limits of the value that
//     follows them, and skipped, wherever they stand.
//
// Anything else is a [*SyntaxError]. After one, nobody can tell where the next
// frame begins, so the rest of the stream cannot be read.
package resp
