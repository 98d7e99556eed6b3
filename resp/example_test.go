package resp_test

import (
	"fmt"
	"io"
	"strings"

	"github.com/redburst/redburst/resp"
)

// A command is encoded at the end of a byte slice.
func ExampleAppendCommand() {
	b := resp.AppendCommand(nil, "SET", "lock", "token", "NX", "PX", "10000")
	fmt.Printf("%q\n", b)

	// The same without a string for each argument.
	b = resp.AppendArray(b[:0], 3)
	b = resp.AppendBulkString(b, "PEXPIRE")
	b = resp.AppendBulk(b, []byte("lock"))
	b = resp.AppendBulkInt(b, 10_000)
	fmt.Printf("%q\n", b)
	// Output:
	// "*6\r\n$3\r\nSET\r\n$4\r\nlock\r\n$5\r\ntoken\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n10000\r\n"
	// "*3\r\n$7\r\nPEXPIRE\r\n$4\r\nlock\r\n$5\r\n10000\r\n"
}

// The caller reads into the reader's buffer, and takes frames out until the reader
// needs more bytes.
func ExampleReader() {
	conn := strings.NewReader("+OK\r\n:1\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$4\r\nlock\r\n-NOPERM no\r\n")

	r := resp.NewReader(4096, resp.Limits{Bulk: 1024})
	for {
		n, err := conn.Read(r.Free(512))
		r.Advance(n)
		for {
			v, err := r.Next()
			if err == resp.ErrNeedMore {
				break
			}
			if err != nil { // the stream is not RESP: close the connection
				fmt.Println(err)
				return
			}
			switch n, ok := v.Int(); {
			case ok:
				fmt.Println("integer", n)
			case v.IsError():
				fmt.Printf("error %s\n", v.ErrorCode())
			case v.Kind() == resp.Push:
				fmt.Printf("push of %d elements\n", v.Len())
			default:
				fmt.Printf("%v %s\n", v.Kind(), v.Bytes())
			}
		}
		if err == io.EOF {
			return
		}
	}
	// Output:
	// simple string OK
	// integer 1
	// push of 2 elements
	// error NOPERM
}

func ExampleValue_Elems() {
	r := resp.NewReader(64, resp.Limits{})
	r.Advance(copy(r.Free(64), "*3\r\n:1\r\n_\r\n$5\r\ntoken\r\n"))
	v, err := r.Next()
	if err != nil {
		fmt.Println(err)
		return
	}
	for it := v.Elems(); ; {
		e, ok := it.Next()
		if !ok {
			break
		}
		fmt.Printf("%v, null %t: %q\n", e.Kind(), e.IsNull(), e.Bytes())
	}
	// Output:
	// integer, null false: "1"
	// null, null true: ""
	// bulk string, null false: "token"
}
