// The controller of the system-upgrade-controller, unchanged, for `cargo xtask bench rollout`. Its own program has
// no endpoint for its readiness.
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/rancher/system-upgrade-controller/pkg/upgrade"
	"github.com/rancher/wrangler/v3/pkg/signals"
	"k8s.io/client-go/tools/clientcmd"
)

// The name in the controller's manifest, its default number of threads and its resync period.
const (
	name    = "system-upgrade-controller"
	threads = 2
	resync  = 2 * time.Hour
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	flags := flag.NewFlagSet(name, flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "file with the address and the credentials of the API server")
	namespace := flags.String("namespace", "", "namespace of the Plans")
	health := flags.String("health-probe-addr", "127.0.0.1:0", "address of /readyz")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.UserAgent = name
	// Without leader election, as this is the only manager.
	controller, err := upgrade.NewController(config, *namespace, name, "", false, resync)
	if err != nil {
		return err
	}
	ctx := signals.SetupSignalContext()
	// Returns when the caches are filled and the workers run.
	if err := controller.Start(ctx, threads); err != nil {
		return err
	}
	http.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	failed := make(chan error, 1)
	go func() { failed <- http.ListenAndServe(*health, nil) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}
