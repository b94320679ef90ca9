// KEDA. The end-to-end tests read its definitions and the source of its pulsar scaler, and run its operator and metrics
// adapter, which are built in KEDA's own module.
module quintet/controlplane/keda

go 1.26.0

require github.com/kedacore/keda/v2 v2.21.0
