module github.com/capi-talos/capi-talos/test/stack/parts/modules/caaph

go 1.24.0

require sigs.k8s.io/cluster-api-addon-provider-helm v0.5.3

tool sigs.k8s.io/cluster-api-addon-provider-helm
