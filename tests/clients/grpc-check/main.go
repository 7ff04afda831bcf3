// Command grpc-check is a gRPC server, and a client that makes each of the four kinds of gRPC calls.
//
//	grpc-check serve                    prints its port, serves without TLS until standard input ends
//	grpc-check call NAME:PORT CA-FILE   calls over TLS and prints the outcome of each call
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
)

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "serve":
		serve()
	case len(os.Args) == 4 && os.Args[1] == "call":
		call(os.Args[2], os.Args[3])
	default:
		fail(fmt.Errorf("usage: grpc-check serve | call NAME:PORT CA-FILE"))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// serve offers the health service (a unary call, and a call with a stream from the server) and reflection (streams in both directions).
func serve() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fail(err)
	}
	server := grpc.NewServer()
	service := health.NewServer()
	service.SetServingStatus("shop", healthpb.HealthCheckResponse_NOT_SERVING)
	healthpb.RegisterHealthServer(server, service)
	reflection.Register(server)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if err := server.Serve(listener); err != nil {
		fail(err)
	}
}

func call(address, authorities string) {
	tls, err := credentials.NewClientTLSFromFile(authorities, "")
	if err != nil {
		fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	connection, err := grpc.DialContext(ctx, address, grpc.WithTransportCredentials(tls), grpc.WithBlock())
	if err != nil {
		fail(err)
	}
	client := healthpb.NewHealthClient(connection)

	answer, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: "shop"})
	fmt.Println("one call:", answer.GetStatus(), status.Code(err))

	_, err = client.Check(ctx, &healthpb.HealthCheckRequest{Service: "nothing"})
	fmt.Println("an error:", status.Code(err), status.Convert(err).Message())

	watching, stop := context.WithCancel(ctx)
	stream, err := client.Watch(watching, &healthpb.HealthCheckRequest{Service: "shop"})
	if err != nil {
		fail(err)
	}
	answer, err = stream.Recv()
	fmt.Println("a stream:", answer.GetStatus(), status.Code(err))
	stop()
	_, err = stream.Recv()
	fmt.Println("cancelled:", status.Code(err) == codes.Canceled)

	reflector := reflectionpb.NewServerReflectionClient(connection)
	// All of these streams are open at the same time.
	var streams []reflectionpb.ServerReflection_ServerReflectionInfoClient
	for range make([]struct{}, 5) {
		stream, err := reflector.ServerReflectionInfo(ctx)
		if err != nil {
			fail(err)
		}
		streams = append(streams, stream)
		for _, service := range []string{"grpc.health.v1.Health", "nothing"} {
			question := &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service}
			if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: question}); err != nil {
				fail(err)
			}
			answer, err := stream.Recv()
			if err != nil {
				fail(err)
			}
			fmt.Println("both ways:", len(answer.GetFileDescriptorResponse().GetFileDescriptorProto()), answer.GetErrorResponse().GetErrorCode())
		}
	}
	for _, stream := range streams {
		if err := stream.CloseSend(); err != nil {
			fail(err)
		}
		_, err := stream.Recv()
		fmt.Println("the end:", err)
	}
}
