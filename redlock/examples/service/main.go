// Command service is a small HTTP service that takes a lock in its hot path: it sells the pieces of a stock, and several
// of it run side by side. redlock/docs/service.md is about it. It is a module of its own, for Prometheus.
//
//	MASTERS=a:6379,b:6379,c:6379 LISTEN=:8080 service
package main

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redburst/redburst/redlock"
	redlockprom "github.com/redburst/redburst/redlock/contrib/prometheus"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", os.Getenv("LISTEN"))
	if err != nil {
		log.Fatal(err)
	}
	if err := serve(ctx, listener, configuration(strings.Split(os.Getenv("MASTERS"), ",")), newMemory(map[int]int{42: 1000})); err != nil {
		log.Fatal(err)
	}
}

// configuration is that of production, and of the tests.
func configuration(masters []string) redlock.Config {
	return redlock.Config{
		Masters:      masters,
		ClientName:   "shop",
		RestartGuard: time.Minute, // the longest TTL, or WithMinHold, of all who use these masters
	}
}

// serve sells until ctx ends, and then lets go of all that it has.
func serve(ctx context.Context, listener net.Listener, cfg redlock.Config, stock stock) error {
	defer listener.Close()
	metrics := redlockprom.New()
	cfg.Observers = append(cfg.Observers, metrics.Observer())
	client, err := redlock.Open(ctx, cfg) // one for the whole process
	if err != nil {
		return err
	}
	defer client.Close()
	metrics.Watch(client)
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)

	mux := http.NewServeMux()
	mux.Handle("POST /sell/{item}", &shop{client, stock})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}

	patience, cancel := context.WithTimeout(context.Background(), 20*time.Second) // less than the orchestrator's
	defer cancel()
	err = server.Shutdown(patience)                    // requests end as they would have, with their locks
	return errors.Join(err, client.Shutdown(patience)) // what goes on all the same is told to stop, and is waited for
}
