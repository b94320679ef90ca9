// KEDA's definitions, and the source of its pulsar scaler: the end-to-end tests hold what is written for KEDA against them.
// Nothing of it is built.
module quintet/controlplane/keda

go 1.26.0

require github.com/kedacore/keda/v2 v2.21.0
