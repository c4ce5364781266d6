module github.com/capi-talos/capi-talos/test/stack/parts/modules/runtime-wrapper

go 1.26.0
