//go:build !unix

package flight

import "os"

// quitSignal does not come: there is no SIGQUIT.
var quitSignal os.Signal = noSignal{}

type noSignal struct{}

func (noSignal) String() string { return "none" }
func (noSignal) Signal()        {}
