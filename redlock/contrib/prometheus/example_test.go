package redlockprom_test

import (
	"context"
	"log"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redburst/redburst/redlock"
	redlockprom "github.com/redburst/redburst/redlock/contrib/prometheus"
)

func Example() {
	metrics := redlockprom.New(redlockprom.WithKeyLabel(func(key string) string {
		kind, _, _ := strings.Cut(key, ":") // "orders" of "orders:42": there are few
		return kind
	}))
	client, err := redlock.Open(context.Background(), redlock.Config{
		Masters:   []string{"a:6379", "b:6379", "c:6379"},
		Observers: []redlock.Observer{metrics.Observer()},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	metrics.Watch(client)
	prometheus.MustRegister(metrics)
	http.Handle("/metrics", promhttp.Handler())
}
