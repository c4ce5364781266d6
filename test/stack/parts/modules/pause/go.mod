module github.com/capi-talos/capi-talos/test/stack/parts/modules/pause

go 1.26.0
