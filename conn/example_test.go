package conn_test

import (
	"fmt"

	"github.com/redburst/redburst/conn"
)

// An address never shows its password.
func ExampleParseAddress() {
	for _, s := range []string{
		"10.0.0.1",
		"rediss://user:secret@[::1]:6380/1",
		"unix:///run/redis.sock?db=2",
		"sentinel://10.0.0.1,10.0.0.2,10.0.0.3/orders",
		"10.0.0.1:6379,10.0.0.2:6379",
	} {
		addr, err := conn.ParseAddress(s)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(addr)
	}
	// Output:
	// 10.0.0.1:6379
	// rediss://[::1]:6380/1
	// unix:///run/redis.sock?db=2
	// sentinel://10.0.0.1:26379,10.0.0.2:26379,10.0.0.3:26379/orders
	// conn: address: this is a list; give each address by itself
}
