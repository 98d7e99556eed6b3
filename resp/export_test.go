package resp

// Buffered is the number of bytes received that belong to no frame returned so far.
func (r *Reader) Buffered() int { return len(r.buf) - r.start }
