//go:build redburst_portable

package main

func init() { tags = "redburst_portable" }
