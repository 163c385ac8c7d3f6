// Package conformance runs Gateway API's own tests of TCPRoutes and UDPRoutes against a cluster
// with weir's controller. It is a separate module: nothing in weir depends on the tests. kube/test
// builds and runs it in a lab.
package conformance

import (
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

// The tests of the profiles that need an HTTP or TLS Gateway, which weir lacks: TestUnsupported
// runs each of them, and each must fail.
var unsupported = strings.Fields(`
GatewayInvalidRouteKind
GatewayInvalidTLSConfiguration
GatewayListenerUnsupportedProtocol
GatewayModifyListeners
GatewaySecretInvalidReferenceGrant
GatewaySecretMissingReferenceGrant
GatewaySecretReferenceGrantAllInNamespace
GatewaySecretReferenceGrantSpecific
`)

func options(t *testing.T) suite.ConformanceOptions {
	t.Helper()
	o := conformance.DefaultOptions(t)
	o.GatewayClassName = "weir"
	o.ConformanceProfiles = []suite.ConformanceProfileName{suite.GatewayTCPConformanceProfileName, suite.GatewayUDPConformanceProfileName}
	o.ManifestFS = []fs.FS{manifests{&conformance.Manifests}}
	o.CleanupBaseResources, o.CleanupTestResources = true, true
	o.DisableParallelTests = true
	o.Implementation.Organization, o.Implementation.Project = "weir", "weir"
	o.Implementation.URL, o.Implementation.Contact = "https://weir.io", []string{"https://weir.io"}
	o.Implementation.Version = os.Getenv("WEIR_VERSION")
	return o
}

// TestConformance writes the report to $WEIR_REPORT.
func TestConformance(t *testing.T) {
	o := options(t)
	o.SkipTests = unsupported
	o.ReportOutputPath = os.Getenv("WEIR_REPORT")
	conformance.RunConformanceWithOptions(t, o)
}

// TestUnsupported runs the tests that TestConformance leaves out; they must fail.
func TestUnsupported(t *testing.T) {
	o := options(t)
	for _, test := range tests.ConformanceTests {
		if !slices.Contains(unsupported, test.ShortName) {
			o.SkipTests = append(o.SkipTests, test.ShortName)
		}
	}
	// A change that has not happened within some seconds will not happen.
	const soon = 5 * time.Second
	o.TimeoutConfig.GatewayMustHaveCondition, o.TimeoutConfig.GatewayStatusMustHaveListeners, o.TimeoutConfig.GatewayListenersMustHaveConditions = soon, soon, soon
	o.TimeoutConfig.LatestObservedGenerationSet, o.TimeoutConfig.DefaultTestTimeout, o.TimeoutConfig.GatewayMustHaveAddress = soon, soon, soon
	o.TimeoutConfig.RouteMustHaveParents, o.TimeoutConfig.HTTPRouteMustHaveCondition = soon, soon
	conformance.RunConformanceWithOptions(t, o)
}
