package flight

import "time"

// Lying are the Options of a host whose wall clock is ahead by so much. If mute is set, its masters do not say their time.
func Lying(by time.Duration, mute bool) Options {
	return Options{Size: minSize, NoQuestions: true, lie: by, mute: mute}
}
