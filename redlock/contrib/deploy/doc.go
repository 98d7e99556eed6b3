// Package deploy has no code. Its folder holds deployments of masters, and of jobs under a lock, for
// Docker Compose, Kubernetes and systemd. Its tests parse them, run what they can, and have redlock
// doctor examine servers that run with their redis.conf, while others attack some. README.md says how to use them.
package deploy
