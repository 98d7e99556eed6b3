package zookeeper

import "time"

// lastSession is the one that was opened last.
func (s *store) lastSession() *session { return s.last.Load() }

func (s *store) lastTimeout() time.Duration { return s.lastSession().wire.sessionTimeout() }
