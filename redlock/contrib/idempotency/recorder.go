package idempotency

import "net/http"

// run runs the handler, and returns its answer.
func run(next http.Handler, r *http.Request, limit int64) *Answer {
	rec := &recorder{header: http.Header{}, limit: limit}
	next.ServeHTTP(rec, r)
	switch {
	case rec.tooLarge:
		return &Answer{Status: http.StatusInsufficientStorage, Header: http.Header{}}
	case rec.status == 0 && r.Context().Err() != nil: // it has given up
		return &Answer{Status: http.StatusServiceUnavailable, Header: http.Header{"Retry-After": {"1"}}}
	}
	rec.WriteHeader(http.StatusOK)
	return &Answer{Status: rec.status, Header: rec.sent, Body: rec.body}
}

// A recorder is the http.ResponseWriter of a handler whose answer is stored.
type recorder struct {
	header, sent http.Header
	status       int // 0 until it is known
	body         []byte
	limit        int64
	tooLarge     bool
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status, r.sent = status, r.header.Clone()
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if int64(len(r.body)+len(p)) > r.limit {
		r.tooLarge = true
		return 0, ErrTooLarge
	}
	r.body = append(r.body, p...)
	return len(p), nil
}
