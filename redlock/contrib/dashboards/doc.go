// Package dashboards has files, and no code, for who watches redlock with Prometheus and Grafana. They
// are about the metrics of redlock/contrib/prometheus.
//
//	redlock-alerts.yml        alert rules, for rule_files of Prometheus
//	redlock-dashboard.json    a dashboard, to be imported into Grafana; it asks for the data source
//
// The thresholds are for a start: how long a wait is too long depends on the work. Labels that are added
// at the scrape or at the registration, such as a client's name, stay in the alerts of clients.
//
// The tests parse all expressions with Prometheus' own parser. Every metric and every label in them is one
// that a client with masters exports, every query of the dashboard returns something for it, and every
// alert fires when it should.
package dashboards
