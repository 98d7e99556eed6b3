// Package gocron lets several schedulers of [github.com/go-co-op/gocron/v2] share their jobs, so that of
// all the processes one runs a job. It has a [Locker], which locks each run of a job, and an
// [Elector], which makes one process the leader that runs all jobs.
//
//	import (
//		"github.com/go-co-op/gocron/v2"
//		redgocron "github.com/redburst/redburst/redlock/contrib/gocron"
//	)
//
//	locker := redgocron.NewLocker(client, "lock:cron:", 30*time.Second,
//		redlock.WithMinHold(4*time.Minute), redlock.WithWait(time.Second))
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//	_, err = scheduler.NewJob(gocron.CronJob("*/5 * * * *", false), gocron.NewTask(report), gocron.WithName("report"))
//
// # Which of the two
//
// With the Locker, the processes share the work, and each tick is decided by itself. Give it
// [redlock.WithMinHold]: a lock is free again when its job has ended, so without it a process whose
// clock is late by more than the job takes runs the job once more.
//
// With the Elector, one process runs everything. It needs no least hold. But when the leader
// changes near a tick, both leaders can run the job of that tick, or neither, by as much as
// their clocks differ. gocron does not ask a Locker where there is an Elector.
//
// # What gocron is not told
//
// gocron has no way to stop a job whose lock is lost: the context of a job belongs to the job, not
// to one run of it. It also ignores the error of Unlock. So a job asks for the context of its
// run itself, and works with that. It ends before another process can have the lock:
//
//	func report() error {
//		ctx := locker.Held("report")
//		return write(ctx, redlock.FenceFrom(ctx)) // the fence is 0 without redlock.WithFence
//	}
//
// With an Elector, that context is [Elector.Term].
//
// The listener gocron.AfterLockError is told why a job was skipped. Its error is the one of
// [redlock.Client.Do]. One that wraps redlock.ErrHeld means that another process has the job. Anything
// else means that perhaps nobody has.
//
// A job that fails is not tried again by another process before the least hold has passed: gocron
// does not tell a Locker how a job ended.
package gocron
