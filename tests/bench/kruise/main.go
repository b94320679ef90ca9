// A manager with only OpenKruise's BroadcastJob controller, unchanged, for `cargo xtask bench daemonjob`. All
// of OpenKruise would need webhooks and certificates, which are not measured.
package main

import (
	"flag"
	"fmt"
	"os"

	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	appsv1alpha1 "github.com/openkruise/kruise/apis/apps/v1alpha1"
	kruiseclient "github.com/openkruise/kruise/pkg/client"
	"github.com/openkruise/kruise/pkg/controller/broadcastjob"
	"github.com/openkruise/kruise/pkg/util"
	utilclient "github.com/openkruise/kruise/pkg/util/client"
	"github.com/openkruise/kruise/pkg/util/fieldindex"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	// The defaults of OpenKruise's own flags.
	qps := flag.Float64("rest-config-qps", 30, "requests per second")
	burst := flag.Int("rest-config-burst", 50, "maximum burst of requests")
	health := flag.String("health-probe-addr", "127.0.0.1:0", "address of /readyz")
	metrics := flag.String("metrics-addr", "0", "address of /metrics")
	flag.Parse()
	ctrl.SetLogger(zap.New())

	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	config.QPS = float32(*qps)
	config.Burst = *burst
	config.UserAgent = "kruise-manager"
	if err := kruiseclient.NewRegistry(config); err != nil {
		return err
	}
	util.SetControllerCacheSyncTimeout(0)

	// The controller uses client-go's global scheme.
	scheme := clientgoscheme.Scheme
	if err := appsv1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metricsserver.Options{BindAddress: *metrics},
		HealthProbeBindAddress: *health,
		NewCache:               utilclient.NewCache,
	})
	if err != nil {
		return err
	}
	if err := fieldindex.RegisterFieldIndexes(manager.GetCache()); err != nil {
		return err
	}
	if err := broadcastjob.Add(manager); err != nil {
		return err
	}
	if err := manager.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}
