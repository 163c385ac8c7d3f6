package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/logs"
	"weir.io/weir/kube/controller"
)

const defaultConfig = "/etc/weir/weir-kube.yaml"

func newController() *cobra.Command {
	var file, kubeconfig, identity string
	var logging logs.Flags
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Give Services of type LoadBalancer addresses, and tell directors what to forward",
		Long: "controller follows Services, Gateways and the routes to them, EndpointSlices and Nodes,\n" +
			"gives Services and Gateways addresses of AddressPools and of the pools in its file, puts\n" +
			"what follows to directors, and writes their status. Of several processes the one works that holds the Lease.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logger(&logging, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			settings, err := loadSettings(file)
			if err != nil {
				return err
			}
			directors, err := settings.clients()
			if err != nil {
				return err
			}
			config, err := apiServer(kubeconfig)
			if err != nil {
				return err
			}
			// Thousands of Services that come at once must each be claimed and written. The API
			// server bounds clients that ask too much (priority and fairness), and the controller
			// how many requests are under way.
			config.QPS, config.Burst = 500, 1000
			c, err := controller.New(config, controller.Options{Class: settings.Class, Default: settings.WithoutClass, Identity: identity,
				Pools: settings.Pools, Translate: settings.options(), Owner: settings.Owner, NoWeights: !*settings.PodWeights, Gateways: settings.Gateways, Directors: directors,
				Namespace: settings.Lease.Namespace, Quotas: settings.quotas()}, log)
			if err != nil {
				return err
			}
			return c.Elect(cmd.Context(), controller.Election{Namespace: settings.Lease.Namespace, Name: settings.Lease.Name,
				Lease: time.Duration(settings.Lease.Duration)})
		},
	}
	cmd.Flags().StringVarP(&file, "config", "c", defaultConfig, "`file` with pools and directors")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "`file` that says where the API server is; else as a pod of the cluster")
	cmd.Flags().StringVar(&identity, "identity", defaultIdentity(), "`name` of this process in the Lease; no other may have it")
	logging.Add(cmd)
	return cmd
}

// defaultIdentity is unique: in a pod the host's name is the pod's.
func defaultIdentity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}
