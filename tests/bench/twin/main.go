// The controller-runtime manager of `cargo xtask bench manager`. It implements the rules of DaemonJob and
// PodSet in their simplest form.
package main

import (
	"context"
	"flag"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	// The label of every pod of this manager.
	kindLabel = "twin.bench/kind"
	// The index of pods by the UID of their controller.
	ownerIndex = ".metadata.controller"
)

func main() {
	metrics := flag.String("metrics-bind-address", ":8080", "address of /metrics")
	probes := flag.String("health-probe-bind-address", ":8081", "address of /healthz and /readyz")
	elect := flag.Bool("leader-elect", false, "enable leader election")
	namespace := flag.String("leader-election-namespace", "", "namespace of the Lease")
	scope := flag.String("watch-namespace", "", "watch only this namespace; empty: all namespaces")
	tuned := flag.Bool("tuned", false, "16 workers, pods selected by label, no managedFields in caches, caches filled "+
		"before it leads, the Lease released on exit; default: the settings of controller-runtime")
	flag.Parse()
	ctrl.SetLogger(zap.New())

	scheme := runtime.NewScheme()
	must(clientgoscheme.AddToScheme(scheme))
	addKinds(scheme)

	config := ctrl.GetConfigOrDie()
	config.UserAgent = "twin/0.1.0"
	options := ctrl.Options{
		Scheme:                  scheme,
		Metrics:                 metricsserver.Options{BindAddress: *metrics},
		HealthProbeBindAddress:  *probes,
		LeaderElection:          *elect,
		LeaderElectionID:        "twin",
		LeaderElectionNamespace: *namespace,
	}
	if *tuned {
		ours, err := labels.NewRequirement(kindLabel, selection.Exists, nil)
		must(err)
		options.Controller.MaxConcurrentReconciles = 16
		warm := true
		options.Controller.EnableWarmup = &warm
		options.LeaderElectionReleaseOnCancel = true
		options.Cache = cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Pod{}: {Label: labels.NewSelector().Add(*ours)},
			},
		}
	}
	if *scope != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{*scope: {}}
	}
	manager, err := ctrl.NewManager(config, options)
	must(err)

	must(manager.GetFieldIndexer().IndexField(context.Background(), &corev1.Pod{}, ownerIndex, ownerUID))
	must(setUpPodSets(manager))
	must(setUpDaemonJobs(manager))
	must(manager.AddHealthzCheck("healthz", healthz.Ping))
	must(manager.AddReadyzCheck("readyz", healthz.Ping))
	must(manager.Start(ctrl.SetupSignalHandler()))
}

func must(err error) {
	if err != nil {
		ctrl.Log.Error(err, "the manager cannot continue")
		os.Exit(1)
	}
}

func ownerUID(object client.Object) []string {
	if owner := metav1.GetControllerOf(object); owner != nil {
		return []string{string(owner.UID)}
	}
	return nil
}

// The pods of an owner in the cache.
func podsOf(ctx context.Context, reader client.Reader, owner client.Object) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := reader.List(ctx, &pods, client.InNamespace(owner.GetNamespace()),
		client.MatchingFields{ownerIndex: string(owner.GetUID())})
	return pods.Items, err
}

func newPod(name, kind string, owner client.Object, template *corev1.PodTemplateSpec) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: owner.GetNamespace(), Labels: map[string]string{}, Annotations: template.Annotations,
		},
		Spec: *template.Spec.DeepCopy(),
	}
	for key, value := range template.Labels {
		pod.Labels[key] = value
	}
	pod.Labels[kindLabel] = kind
	return pod
}

func isFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func isTrue(conditions []corev1.PodCondition, kind corev1.PodConditionType) bool {
	for _, condition := range conditions {
		if condition.Type == kind {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
