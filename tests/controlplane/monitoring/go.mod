// The definitions of prometheus-operator's kinds: the chart's monitors and rules are held against them. Nothing of it is built.
module quintet/controlplane/monitoring

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
