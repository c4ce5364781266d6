// Command cert-manager-controllers runs cert-manager's own controllers for
// self-signed and CA certificates and its CA injector in one process. It is
// what the test bed installs as cert-manager where the images of cert-manager
// cannot be pulled; cert-manager's webhook is not part of it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"

	// Each of these registers one controller.
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	// namespace is where cluster issuers keep their secrets.
	namespace = "cert-manager"
	// workers is the number of workers per controller.
	workers = 2
)

func main() {
	ctrl.SetLogger(klog.Background())
	ctx := klog.NewContext(ctrl.SetupSignalHandler(), klog.Background())
	if err := run(ctx); err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "Ending")
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("reading the access to the API server: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	if err := startInjector(ctx, group, config); err != nil {
		return err
	}
	if err := startControllers(ctx, group); err != nil {
		return err
	}
	return group.Wait()
}

// startInjector starts what writes CAs into webhooks, API services and kinds.
func startInjector(ctx context.Context, group *errgroup.Group, config *rest.Config) error {
	scheme := runtime.NewScheme()
	err := errors.Join(
		clientgoscheme.AddToScheme(scheme),
		apiextensionsv1.AddToScheme(scheme),
		apiregistrationv1.AddToScheme(scheme),
		cmapi.AddToScheme(scheme),
	)
	if err != nil {
		return fmt.Errorf("filling the scheme: %w", err)
	}
	// The injector writes as the first word of its user agent.
	config = rest.CopyConfig(config)
	config.UserAgent = "cert-manager-cainjector/test"
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return fmt.Errorf("making the CA injector's manager: %w", err)
	}
	err = cainjector.RegisterAllInjectors(ctx, mgr, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor: map[string]bool{
			cainjector.MutatingWebhookConfigurationName:   true,
			cainjector.ValidatingWebhookConfigurationName: true,
			cainjector.APIServiceName:                     true,
			cainjector.CustomResourceDefinitionName:       true,
		},
	})
	if err != nil {
		return fmt.Errorf("setting up the CA injector: %w", err)
	}
	group.Go(func() error { return mgr.Start(ctx) })
	return nil
}

// startControllers starts all controllers that the imports registered.
func startControllers(ctx context.Context, group *errgroup.Group) error {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:         os.Getenv("KUBECONFIG"),
		KubernetesAPIQPS:   50,
		KubernetesAPIBurst: 100,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: namespace},
		CertificateOptions: controller.CertificateOptions{
			CertificateRequestMinimumBackoffDuration: time.Minute,
			CertificateRequestMaximumBackoffDuration: time.Hour,
		},
	})
	if err != nil {
		return fmt.Errorf("making the controllers' clients: %w", err)
	}
	shared, err := factory.Build()
	if err != nil {
		return fmt.Errorf("making the controllers' context: %w", err)
	}
	for name, constructor := range controller.Known() {
		known, err := constructor(factory)
		if err != nil {
			return fmt.Errorf("setting up controller %s: %w", name, err)
		}
		group.Go(func() error { return known.Run(workers, ctx) })
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	shared.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	return nil
}
