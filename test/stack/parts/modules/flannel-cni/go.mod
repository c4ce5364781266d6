module github.com/capi-talos/capi-talos/test/stack/parts/modules/flannel-cni

go 1.24.2

tool github.com/containernetworking/plugins/plugins/meta/flannel

require (
	github.com/Microsoft/go-winio v0.4.17-0.20210211115548-6eac466e5fa3 // indirect
	github.com/Microsoft/hcsshim v0.8.16 // indirect
	github.com/buger/jsonparser v1.1.1 // indirect
	github.com/containerd/cgroups v0.0.0-20210114181951-8a68de567b68 // indirect
	github.com/containernetworking/cni v1.0.0-rc1 // indirect
	github.com/containernetworking/plugins v1.0.0-rc1 // indirect
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/golang/groupcache v0.0.0-20200121045136-8c9f03a8e57e // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/sirupsen/logrus v1.8.1 // indirect
	go.opencensus.io v0.22.3 // indirect
	golang.org/x/sys v0.0.0-20210414055047-fe65e336abe0 // indirect
)
