package e2e

import (
	_ "github.com/onsi/ginkgo/v2"
	_ "github.com/onsi/gomega"
	_ "sigs.k8s.io/cluster-api/test/e2e"
	_ "sigs.k8s.io/cluster-api/test/framework"
	_ "sigs.k8s.io/cluster-api/test/framework/bootstrap"
	_ "sigs.k8s.io/cluster-api/test/framework/clusterctl"
	_ "github.com/capi-talos/capi-talos/test/stack/kindstack"
	_ "github.com/capi-talos/capi-talos/test/stack/demo"
	_ "k8s.io/apiserver/pkg/apis/audit/v1"
)
