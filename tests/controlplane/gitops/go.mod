// The definitions of the kinds of Argo CD and Flux: the manifests in samples/gitops are held against them. Nothing is built.
module quintet/controlplane/gitops

go 1.26.0

require (
	github.com/argoproj/argo-cd/v3 v3.5.1
	github.com/fluxcd/helm-controller v1.6.0
	github.com/fluxcd/source-controller v1.9.6
)
