// A manager of OpenKruise with its BroadcastJob controller alone, for `cargo xtask bench daemonjob`. The whole of OpenKruise
// wants webhooks and certificates, which have nothing to do with what is measured; the controller is theirs, unchanged.
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
	qps := flag.Float64("rest-config-qps", 30, "requests a second")
	burst := flag.Int("rest-config-burst", 50, "requests at once beyond that")
	health := flag.String("health-probe-addr", "127.0.0.1:0", "where /readyz answers")
	metrics := flag.String("metrics-addr", "0", "where /metrics answers")
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

	// The controller asks client-go's own scheme.
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
