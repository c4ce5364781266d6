package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Row is one call with one request, to be done as every caller. None of them
// changes a node: what would is given a request that is refused once the caller
// is authorized, or the node cannot do it in a container. What does change nodes
// is in scenarios.
type Row struct {
	// Method is the full name of the call.
	Method string
	// Variant tells rows of one method apart.
	Variant string
	// Request is the request, in the JSON of its message.
	Request string
}

// Name is the name of the row in a record.
func (r Row) Name() string {
	return strings.TrimSpace(r.Method + " " + r.Variant)
}

// Rows are all rows: every method of machined's rule map
// (internal/app/machined/pkg/system/services/machined.go), and what our providers
// read.
func Rows() []Row {
	rows := append(calls(), machineCalls()...)
	return append(rows, resourceRows()...)
}

// nothing is the name of something that no node has.
const nothing = "nothing"

func calls() []Row {
	return []Row{
		{Method: "/cluster.ClusterService/HealthCheck", Request: `{"waitTimeout": "1s", "clusterInfo": {"controlPlaneNodes": ["127.0.0.1"]}}`},
		{Method: "/inspect.InspectService/ControllerRuntimeDependencies"},
		{Method: "/machine.DebugService/ContainerRun"},
		{Method: "/machine.ImageService/Import"},
		{Method: "/machine.ImageService/List"},
		{Method: "/machine.ImageService/Pull"},
		{Method: "/machine.ImageService/Remove"},
		{Method: "/machine.ImageService/Verify"},
		{Method: "/machine.LifecycleService/Install"},
		{Method: "/machine.LifecycleService/Upgrade"},
		{Method: "/storage.StorageService/BlockDeviceWipe"},
		{Method: "/storage.StorageService/Disks"},
		{Method: "/time.TimeService/Time"},
		{Method: "/time.TimeService/TimeCheck", Request: `{"server": "127.0.0.1"}`},
	}
}

// machineCalls are those of the machine service.
func machineCalls() []Row {
	const garbage, noMachine, unknown = "bm90OiBbeWFtbA==", "bWFjaGluZToge30=", "YXBpVmVyc2lvbjogdjFhbHBoYTEKa2luZDogTm90aGluZ0NvbmZpZwo="
	rows := []Row{
		{Method: "ApplyConfiguration", Variant: "of what is no YAML", Request: `{"data": "` + garbage + `", "mode": "NO_REBOOT"}`},
		{Method: "ApplyConfiguration", Variant: "without a type", Request: `{"data": "` + noMachine + `", "mode": "NO_REBOOT"}`},
		{Method: "ApplyConfiguration", Variant: "with an unknown document", Request: `{"data": "` + unknown + `", "mode": "NO_REBOOT"}`},
		{Method: "ApplyConfiguration", Variant: "of nothing", Request: `{"mode": "NO_REBOOT"}`},
		{Method: "Bootstrap"},
		{Method: "Copy", Request: `{"rootPath": "/nothing"}`},
		{Method: "DiskUsage", Request: `{"paths": ["/nothing"]}`},
		{Method: "EtcdDowngradeEnable", Request: `{"version": "nothing"}`},
		{Method: "EtcdDowngradeValidate", Request: `{"version": "nothing"}`},
		{Method: "EtcdMemberList"},
		{Method: "EtcdMemberList", Variant: "of the node's own etcd", Request: `{"queryLocal": true}`},
		{Method: "EtcdRemoveMemberByID", Request: `{"memberId": "1"}`},
		{Method: "Events", Request: `{"tailEvents": 1}`},
		{Method: "GenerateClientConfiguration", Request: `{"roles": ["os:reader"], "crtTtl": "3600s"}`},
		{Method: "ImagePull", Request: `{"reference": "not a reference"}`},
		{Method: "List", Variant: "of etcd's data", Request: `{"root": "/var/lib/etcd"}`},
		{Method: "List", Variant: "of nothing", Request: `{"root": "/nothing"}`},
		{Method: "Logs", Request: `{"namespace": "system", "id": "apid", "tailLines": 1}`},
		{Method: "MetaDelete", Request: `{"key": 10}`},
		{Method: "MetaWrite", Request: `{"key": 10, "value": ""}`},
		{Method: "PacketCapture", Request: `{"interface": "nothing"}`},
		{Method: "Read", Request: `{"path": "/nothing"}`},
		{Method: "Reset", Variant: "of a volume that is not there", Request: `{"reboot": true, "systemPartitionsToWipe": [{"label": "NOTHING", "wipe": true}]}`},
		{Method: "Reset", Variant: "of a volume without a location", Request: `{"reboot": true, "systemPartitionsToWipe": [{"label": "STATE", "wipe": true}]}`},
		{Method: "Restart", Request: `{"namespace": "k8s.io", "id": "nothing"}`},
		{Method: "ServiceRestart", Request: `{"id": "nothing"}`},
		{Method: "ServiceStart", Request: `{"id": "nothing"}`},
		{Method: "ServiceStop", Request: `{"id": "nothing"}`},
		{Method: "Upgrade", Request: `{"image": "nothing"}`},
	}
	for _, method := range []string{
		"CPUFreqStats", "CPUInfo", "Containers", "DiskStats", "Dmesg", "EtcdAlarmDisarm", "EtcdAlarmList", "EtcdDefragment",
		"EtcdDowngradeCancel", "EtcdForfeitLeadership", "EtcdLeaveCluster", "EtcdRecover", "EtcdSnapshot", "EtcdStatus", "Hostname",
		"ImageList", "Kubeconfig", "LoadAvg", "LogsContainers", "Memory", "Mounts", "Netstat", "NetworkDeviceStats", "Processes",
		"Reboot", "Rollback", "ServiceList", "Shutdown", "Stats", "SystemStat", "Version",
	} {
		rows = append(rows, Row{Method: method})
	}
	for i := range rows {
		rows[i].Method = "/machine.MachineService/" + rows[i].Method
	}
	return rows
}

// ask does the call.
func (r Row) ask(ctx context.Context, conn *grpc.ClientConn, timeout time.Duration) answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	method, err := r.describe()
	if err != nil {
		return answer{err: err}
	}
	request := dynamicpb.NewMessage(method.Input())
	if r.Request != "" {
		if err := protojson.Unmarshal([]byte(r.Request), request); err != nil {
			return answer{err: fmt.Errorf("making the request of %s: %w", r.Name(), err)}
		}
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, r.Method, grpc.ForceCodec(plain{}))
	if err != nil {
		return answer{err: err}
	}
	// When the stream has ended already, receiving tells why.
	_ = stream.SendMsg(request)
	_ = stream.CloseSend()
	switch err := stream.RecvMsg(dynamicpb.NewMessage(method.Output())); {
	case errors.Is(err, io.EOF):
		return answer{kind: "empty"}
	case method.IsStreamingServer() && status.Code(err) == codes.DeadlineExceeded:
		return answer{kind: "open"}
	default:
		return answer{err: err}
	}
}

// describe finds the method.
func (r Row) describe() (protoreflect.MethodDescriptor, error) {
	service, name, _ := strings.Cut(strings.TrimPrefix(r.Method, "/"), "/")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, fmt.Errorf("looking for %s: %w", r.Method, err)
	}
	described, ok := found.(protoreflect.ServiceDescriptor)
	if !ok || described.Methods().ByName(protoreflect.Name(name)) == nil {
		return nil, fmt.Errorf("looking for %s: there is no such method", r.Method)
	}
	return described.Methods().ByName(protoreflect.Name(name)), nil
}

// plain encodes any message.
type plain struct{}

// Name implements encoding.Codec.
func (plain) Name() string { return "proto" }

// Marshal implements encoding.Codec.
func (plain) Marshal(v any) ([]byte, error) {
	message, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	return proto.Marshal(message)
}

// Unmarshal implements encoding.Codec. Fields that are not known are kept.
func (plain) Unmarshal(data []byte, v any) error {
	message, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", v)
	}
	return proto.Unmarshal(data, message)
}

// object is a request of the resource API.
func object(fields map[string]any) string {
	content, err := json.Marshal(fields)
	if err != nil {
		return ""
	}
	return string(content)
}
