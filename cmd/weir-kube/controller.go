package main

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"weir.io/weir/kube/controller"
)

const defaultConfig = "/etc/weir/weir-kube.yaml"

func newController() *cobra.Command {
	var file, kubeconfig, format, identity string
	var level slog.Level
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Give Services of type LoadBalancer addresses, and tell directors what to forward",
		Long: "controller follows Services, EndpointSlices and Nodes, gives Services addresses of\n" +
			"AddressPools and of the pools in its file, puts what follows to directors, and writes the\n" +
			"Services' status. Of several processes the one works that holds the Lease.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options := &slog.HandlerOptions{Level: level}
			var handler slog.Handler = slog.NewTextHandler(cmd.ErrOrStderr(), options)
			switch format {
			case "text":
			case "json":
				handler = slog.NewJSONHandler(cmd.ErrOrStderr(), options)
			default:
				return fmt.Errorf("unknown log format %q (one of json, text)", format)
			}
			klog.SetLogger(logr.FromSlogHandler(handler)) // what the client's library says
			settings, err := loadSettings(file)
			if err != nil {
				return err
			}
			directors, err := settings.clients()
			if err != nil {
				return err
			}
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig) // in a pod without a file: the pod's own
			if err != nil {
				return fmt.Errorf("find the API server: %w", err)
			}
			config.UserAgent = "weir-kube/" + version
			// Thousands of Services that come at once are each to be claimed and written.
			config.QPS, config.Burst = 200, 400
			c, err := controller.New(config, controller.Options{Class: settings.Class, Default: settings.WithoutClass, Identity: identity,
				Pools: settings.Pools, Translate: settings.options(), Owner: settings.Owner, Directors: directors,
				Namespace: settings.Lease.Namespace}, slog.New(handler))
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
	cmd.Flags().StringVar(&format, "log-format", "text", "text or json")
	cmd.Flags().TextVar(&level, "log-level", slog.LevelInfo, "debug, info, warn or error")
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
