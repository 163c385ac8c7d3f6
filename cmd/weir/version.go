package main

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weir.io/weir/internal/agent"
	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/flowsync"
	"weir.io/weir/internal/loads"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Both are set by the linker: -X main.version=1.2.3 -X main.commit=HASH.
var (
	version = "development"
	commit  = "unknown"
)

// versionInfo is what weir version prints.
type versionInfo struct {
	Version  string         `json:"version"`
	Commit   string         `json:"commit"`
	Go       string         `json:"go"`
	Platform string         `json:"platform"`
	Programs programsBuild  `json:"programs"`
	Formats  versionFormats `json:"formats"`
}

// programsBuild names the BPF programs that the binary has, by hashes of their objects: two builds
// with the same hash load the same programs.
type programsBuild struct {
	Director string `json:"director"`
	Agent    string `json:"agent"`
}

// versionFormats are the formats that this version shares with others, on disk and on the wire.
type versionFormats struct {
	Store    int               `json:"store"`
	Flows    []string          `json:"flows"`
	Loads    int               `json:"loads"`
	Director map[string]string `json:"director"`
	Agent    map[string]string `json:"agent"`
}

func newVersion() *cobra.Command {
	var out output
	var formats bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, and the formats that it shares with other versions",
		Long: "version prints the version, the commit and the Go version that this program was built from.\n" +
			"With --formats, and in JSON and YAML, there are hashes of the BPF programs in it, and the\n" +
			"formats that it shares with other versions: of the store (files and etcd), of what directors\n" +
			"tell each other of flows and agents of loads, and of the maps that director and agent pin, with\n" +
			"the default limits.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			about, err := aboutVersion()
			if err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), about, func(t *table) {
				t.line(strings.TrimSpace(versionText()))
				if formats || t.wide {
					about.table(t)
				}
			})
		},
	}
	out.add(cmd)
	cmd.Flags().BoolVar(&formats, "formats", false, "also in a table print the hashes of the programs, and the formats")
	return cmd
}

func aboutVersion() (versionInfo, error) {
	about := versionInfo{
		Version: version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Programs: programsBuild{datapath.Build(), agent.Build()},
		Formats:  versionFormats{Store: store.Format, Flows: flowsync.Protocols(), Loads: loads.Version},
	}
	var defaults model.Config
	defaults.SetDefaults()
	var err error
	if about.Formats.Director, err = datapath.Formats(defaults.Director.Limits); err != nil {
		return about, fmt.Errorf("name the formats of the director's maps: %w", err)
	}
	if about.Formats.Agent, err = agent.Formats(); err != nil {
		return about, fmt.Errorf("name the formats of the agent's maps: %w", err)
	}
	return about, nil
}

func (v versionInfo) table(t *table) {
	t.row("programs of the director", v.Programs.Director)
	t.row("programs of the agent", v.Programs.Agent)
	t.row("format of the store", v.Formats.Store)
	t.row("format of flows", strings.Join(v.Formats.Flows, ", "))
	t.row("format of loads", v.Formats.Loads)
	for _, role := range []struct {
		name string
		maps map[string]string
	}{{"director", v.Formats.Director}, {"agent", v.Formats.Agent}} {
		for _, name := range slices.Sorted(maps.Keys(role.maps)) {
			t.row("pins of the "+role.name+": "+name, role.maps[name])
		}
	}
}

func versionText() string {
	return fmt.Sprintf("weir %s commit %s %s %s/%s\n", version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
