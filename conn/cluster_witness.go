package conn

import (
	"strconv"
	"strings"
	"time"
)

// A witness is a key in the slot of a cluster that says which node was the slot's master, and since when.
//
// A cluster forgets its latest writes in a failover, and a client that starts later knows nothing of it: no node says
// when it has become a master. So the first client that connects to a new master leaves the witness there. Whoever finds
// it later knows for how long that server has been the master, without a break.
//
// Its value names the server (run_id), its history (master_replid) and its config epoch. A server that starts has
// another run_id. One that is promoted has another master_replid, and one that is given the slot another epoch. So what a
// new master has inherited from the one before does not name it. A witness that was lost only tells too little.
//
// Its age is by the server's clock, as the TTLs of all locks are: it was set with a life of a hundred years, and PTTL
// says what is left. The master before it may have been relied on for [SlotTrust] after the witness was set. So that is
// taken off.

const (
	witnessLife = 100 * 365 * 24 * time.Hour

	getWitness  = "GET of the witness" // names of commands of the handshake
	witnessLeft = "PTTL of the witness"
)

// addWitness asks for the witness.
func (h *handshake) addWitness() {
	if h.opt.Witness != "" {
		h.add(getWitness, "GET", h.opt.Witness)
		h.add(witnessLeft, "PTTL", h.opt.Witness)
	}
}

// heedWitness takes what the witness says of the server, and sets it if it is about another one.
func (h *handshake) heedWitness(s *Server, replies []reply) error {
	if !h.cluster || h.opt.Witness == "" || s.RunID == "" || s.ReplID == "" || s.Epoch == "" {
		return nil
	}
	id := strings.Join([]string{s.RunID, s.ReplID, s.Epoch}, " ")
	same := false
	for _, r := range replies {
		switch r.name {
		case getWitness:
			if r.IsError() {
				return nil // evaluate has said so
			}
			same = string(r.Bytes()) == id
		case witnessLeft:
			if ms, ok := r.Int(); ok && ms > 0 && same {
				s.MasterFor = max(0, witnessLife-time.Duration(ms)*time.Millisecond-SlotTrust)
				return nil
			}
		}
	}
	h.out, h.names = h.out[:0], h.names[:0]
	h.add("SET of the witness", "SET", h.opt.Witness, id, "PX", strconv.FormatInt(witnessLife.Milliseconds(), 10))
	replies, err := h.exchange()
	if err == nil && replies[0].IsError() {
		s.Missing = append(s.Missing, "time as the slot's master: "+h.quote("SET", replies[0].Value))
	}
	return err
}
