// Package fencesql shows a table whose rows refuse the writes of an earlier holder of their lock.
// It is a module of its own, so that the database stays out of ours.
package fencesql
