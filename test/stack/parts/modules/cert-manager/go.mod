module github.com/capi-talos/capi-talos/test/stack/parts/modules/cert-manager

go 1.26.0

require github.com/cert-manager/cert-manager v1.21.2
