// Conversations over HTTP/3 by a client made with the library quic-go. Arguments: CONVERSATION PORT [ARGUMENT].
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
)

var (
	port     = os.Args[2]
	sessions = tls.NewLRUClientSessionCache(10)
	patience = 60 * time.Second
)

var conversations = map[string]func() error{
	"handshake":       handshake,
	"get":             get,
	"download":        download,
	"long_hello":      get,
	"versions":        versions,
	"late_resumption": lateResumption,
	"early_data":      earlyData,
	"key_update":      keyUpdate,
	"migration":       migration,
	"requests":        requests,
	"huge":            huge,
	"upload":          upload,
	"post":            post,
	"semantics":       semantics,
	"trailers":        trailers,
	"cancelled":       cancelled,
	"priorities":      priorities,
	"websocket":       webSocket,
	"idle":            idle,
	"shutdown":        shutdown,
}

func main() {
	conversation := conversations[os.Args[1]]
	if conversation == nil {
		fmt.Fprintln(os.Stderr, "no such conversation")
		os.Exit(2)
	}
	if err := conversation(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ok")
}

// A QUIC connection on which HTTP/3 is spoken.
type client struct {
	transport *quic.Transport
	conn      *quic.Conn
	http      *http3.ClientConn
}

// Connects; with `early`, returns as soon as early data may be sent, before the handshake is complete.
func connect(settings quic.Config, early bool) (*client, error) {
	address, err := net.ResolveUDPAddr("udp", "127.0.0.1:"+port)
	if err != nil {
		return nil, err
	}
	socket, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return nil, err
	}
	transport := &quic.Transport{Conn: socket}
	dial := transport.Dial
	if early {
		dial = transport.DialEarly
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := dial(ctx, address, &tls.Config{
		InsecureSkipVerify: true,
		NextProtos:         []string{"h3"},
		ServerName:         "localhost",
		ClientSessionCache: sessions,
	}, &settings)
	if err != nil {
		return nil, err
	}
	h3 := &http3.Transport{DisableCompression: true}
	return &client{transport, conn, h3.NewClientConn(conn)}, nil
}

func (c *client) close() {
	_ = c.conn.CloseWithError(0x100, "")
	_ = c.transport.Close()
	_ = c.transport.Conn.Close()
}

// Opens a connection, runs the conversation `talk` on it, and closes it.
func with(settings quic.Config, early bool, talk func(*client) error) error {
	c, err := connect(settings, early)
	if err != nil {
		return err
	}
	defer c.close()
	return talk(c)
}

func request(ctx context.Context, method, path string, body io.Reader, fields ...string) *http.Request {
	made, err := http.NewRequestWithContext(ctx, method, "https://localhost:"+port+path, body)
	if err != nil {
		panic(err)
	}
	for n := 0; n+1 < len(fields); n += 2 {
		made.Header.Set(fields[n], fields[n+1])
	}
	return made
}

// A response, with all of its content.
type answer struct {
	*http.Response
	content []byte
}

func (c *client) ask(method, path string, body io.Reader, fields ...string) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	response, err := c.http.RoundTrip(request(ctx, method, path, body, fields...))
	if err != nil {
		return answer{}, fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return answer{response, content}, nil
}

func (c *client) expect(method, path string, status int, content []byte, fields ...string) (answer, error) {
	got, err := c.ask(method, path, nil, fields...)
	if err != nil {
		return got, err
	}
	if got.StatusCode != status || !bytes.Equal(got.content, content) {
		return got, fmt.Errorf("%s %s: %d with %d bytes", method, path, got.StatusCode, len(got.content))
	}
	return got, nil
}

var hello = []byte("hello, world")

// The content of the file `large`.
func large() []byte {
	var content bytes.Buffer
	for n := 0; n < 50_000; n++ {
		fmt.Fprintf(&content, "%07x ", n)
	}
	return content.Bytes()
}

func (c *client) hello() error {
	_, err := c.expect("GET", "/hello.txt", 200, hello)
	return err
}

func (c *client) large() error {
	_, err := c.expect("GET", "/large", 200, large())
	return err
}

// Runs `run` with the numbers 0 to `count` - 1, all at the same time.
func atOnce(count int, run func(n int) error) error {
	errs := make([]error, count)
	var running sync.WaitGroup
	for n := range count {
		running.Go(func() { errs[n] = run(n) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// Client and server agree on HTTP/3, exchange SETTINGS, and end without an error.
func handshake() error {
	return with(quic.Config{}, false, func(c *client) error {
		select {
		case <-c.http.ReceivedSettings():
		case <-time.After(patience):
			return errors.New("the server sent no SETTINGS")
		}
		if agreed := c.conn.ConnectionState().TLS.NegotiatedProtocol; agreed != "h3" {
			return fmt.Errorf("the connection has the protocol %q", agreed)
		}
		return nil
	})
}

// Fetches a small and a large file.
func get() error {
	return with(quic.Config{}, false, func(c *client) error {
		return errors.Join(c.hello(), c.large())
	})
}

// Fetches files over a path that loses, reorders or duplicates packets, or forgets the client's port.
func download() error {
	return with(quic.Config{}, false, func(c *client) error {
		return errors.Join(atOnce(3, func(int) error { return c.large() }), c.hello())
	})
}

// The client begins with QUIC version 2, which the server does not support; both continue with version 1.
func versions() error {
	settings := quic.Config{Versions: []quic.Version{quic.Version2, quic.Version1}}
	return with(settings, false, func(c *client) error {
		if version := c.conn.ConnectionState().Version; version != quic.Version1 {
			return fmt.Errorf("the connection has QUIC version %v", version)
		}
		return c.hello()
	})
}

// Opens a connection to get a session ticket, and returns when the ticket is in the cache of sessions.
func getTicket() error {
	return with(quic.Config{}, false, func(c *client) error {
		if err := c.hello(); err != nil {
			return err
		}
		for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
			if _, found := sessions.Get("localhost"); found {
				return nil
			}
		}
		return errors.New("no ticket")
	})
}

// A second connection resumes the session of the first; requests are sent after the handshake.
func lateResumption() error {
	if err := getTicket(); err != nil {
		return err
	}
	return with(quic.Config{}, false, func(c *client) error {
		if !c.conn.ConnectionState().TLS.DidResume {
			return errors.New("not resumed")
		}
		return c.hello()
	})
}

// A request in the early data of a resumed connection reaches the backend.
func earlyData() error {
	if err := getTicket(); err != nil {
		return err
	}
	return with(quic.Config{}, true, func(c *client) error {
		if _, err := c.expect(http3.MethodGet0RTT, "/backend/echo", 200, nil); err != nil {
			return err
		}
		<-c.conn.HandshakeComplete()
		if !c.conn.ConnectionState().Used0RTT {
			return errors.New("early data was not taken")
		}
		return c.large()
	})
}

// Counts the key updates that the client began.
type keyUpdates struct{ count atomic.Int32 }

func (k *keyUpdates) AddProducer() qlogwriter.Recorder { return k }
func (k *keyUpdates) Close() error                     { return nil }
func (k *keyUpdates) RecordEvent(event qlogwriter.Event) {
	if updated, ok := event.(qlog.KeyUpdated); ok && updated.Trigger != qlog.KeyUpdateTLS {
		k.count.Add(1)
	}
}

// The connection survives key updates: quic-go begins one after 100 packets.
func keyUpdate() error {
	updates := &keyUpdates{}
	settings := quic.Config{
		Tracer: func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return updates },
	}
	return with(settings, false, func(c *client) error {
		for range 5 {
			if err := c.large(); err != nil {
				return err
			}
		}
		if updates.count.Load() == 0 {
			return errors.New("the keys were not changed")
		}
		return nil
	})
}

// The connection moves to another socket of the client, once the client has probed the new path.
func migration() error {
	return with(quic.Config{}, false, func(c *client) error {
		if err := c.hello(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		response, err := c.http.RoundTrip(request(ctx, "GET", "/large", nil))
		if err != nil {
			return err
		}
		socket, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return err
		}
		path, err := c.conn.AddPath(&quic.Transport{Conn: socket})
		if err != nil {
			return err
		}
		if err := path.Probe(ctx); err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		if err := path.Switch(); err != nil {
			return fmt.Errorf("switch: %w", err)
		}
		content, err := io.ReadAll(response.Body)
		if err != nil || !bytes.Equal(content, large()) {
			return fmt.Errorf("%d bytes, %w", len(content), err)
		}
		return errors.Join(c.large(), c.hello())
	})
}

// More than 1,000 requests on one connection, 100 at a time.
func requests() error {
	return with(quic.Config{}, false, func(c *client) error {
		for range 12 {
			if err := atOnce(100, func(int) error { return c.hello() }); err != nil {
				return err
			}
		}
		return nil
	})
}

// A file of 100 MB arrives unchanged.
func huge() error {
	return with(quic.Config{}, false, func(c *client) error {
		got, err := c.ask("GET", "/huge", nil)
		if err != nil {
			return err
		}
		if sum := sha256.Sum256(got.content); hex.EncodeToString(sum[:]) != os.Args[3] {
			return fmt.Errorf("%d bytes that differ from the file", len(got.content))
		}
		return nil
	})
}

// A request's content reaches a backend, which sends it back.
func upload() error {
	return with(quic.Config{}, false, func(c *client) error {
		content := make([]byte, 3_000_000)
		if _, err := rand.Read(content); err != nil {
			return err
		}
		got, err := c.ask("POST", "/backend/echo", bytes.NewReader(content))
		if err != nil {
			return err
		}
		if got.StatusCode != 200 || !bytes.Equal(got.content, content) {
			return fmt.Errorf("%d with %d bytes", got.StatusCode, len(got.content))
		}
		return nil
	})
}

// Sends a POST request whose content is as many zeros as the argument says, to the path in the argument. Prints content and status of the
// response, which may come before all of the content is sent.
func post() error {
	var size int64
	var path string
	if _, err := fmt.Sscan(os.Args[3], &size, &path); err != nil {
		return err
	}
	return with(quic.Config{}, false, func(c *client) error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
		defer cancel()
		body := io.LimitReader(zeros{}, size)
		request, err := http.NewRequestWithContext(ctx, "POST", "https://localhost:"+port+path, io.NopCloser(body))
		if err != nil {
			return err
		}
		request.ContentLength = size
		response, err := c.http.RoundTrip(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		fmt.Printf("%s %d\n", content, response.StatusCode)
		return nil
	})
}

// A reader that returns zeros without end.
type zeros struct{}

func (zeros) Read(piece []byte) (int, error) {
	clear(piece)
	return len(piece), nil
}

// HEAD, conditional requests and ranges.
func semantics() error {
	return with(quic.Config{}, false, func(c *client) error {
		content := large()
		got, err := c.expect("HEAD", "/large", 200, nil)
		if err != nil {
			return err
		}
		if got.ContentLength != int64(len(content)) {
			return fmt.Errorf("content-length of HEAD: %d", got.ContentLength)
		}
		if _, err = c.expect("GET", "/large", 304, nil, "if-none-match", got.Header.Get("etag")); err != nil {
			return err
		}
		if _, err = c.expect("GET", "/large", 206, content[100:300], "range", "bytes=100-299"); err != nil {
			return err
		}
		got, err = c.ask("GET", "/large", nil, "range", "bytes=9999999-")
		if err == nil && got.StatusCode != 416 {
			err = fmt.Errorf("416 expected, not %d", got.StatusCode)
		}
		return err
	})
}

// A request with trailers is answered, and the trailers of the response arrive.
func trailers() error {
	return with(quic.Config{}, false, func(c *client) error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		asked := request(ctx, "POST", "/go/call", io.MultiReader(bytes.NewReader(hello)), "te", "trailers")
		asked.Trailer = http.Header{"X-Sum": {"of content"}}
		response, err := c.http.RoundTrip(asked)
		if err != nil {
			return err
		}
		content, err := io.ReadAll(response.Body)
		if err != nil || !bytes.Equal(content, hello) {
			return fmt.Errorf("%q, %w", content, err)
		}
		if got := response.Trailer.Get("grpc-message"); got != "not today" {
			return fmt.Errorf("trailers %v", response.Trailer)
		}
		return nil
	})
}

// Responses that the client cancels do not hold up other responses.
func cancelled() error {
	return with(quic.Config{}, false, func(c *client) error {
		for range 50 {
			ctx, cancel := context.WithCancel(context.Background())
			response, err := c.http.RoundTrip(request(ctx, "GET", "/huge", nil))
			if err != nil {
				cancel()
				return err
			}
			cancel()
			if _, err := io.ReadAll(response.Body); err == nil {
				return errors.New("all of the response has come")
			}
		}
		return c.hello()
	})
}

// A more urgent response is completed before others that were requested earlier.
func priorities() error {
	return with(quic.Config{}, false, func(c *client) error {
		var before int32
		// If the machine is so busy that the urgent request is sent too late, the client repeats the attempt, three times at most.
		for range 3 {
			var err error
			if before, err = c.comesBefore(); err != nil || before == 0 {
				return err
			}
		}
		return fmt.Errorf("%d less urgent responses came before the urgent one", before)
	})
}

// Requests three large responses and, once one of them arrives, a more urgent one. Returns how many were complete before the urgent one.
func (c *client) comesBefore() (int32, error) {
	begun := make(chan bool, 4)
	var ended, before atomic.Int32
	part := func(n int, priority string) error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		response, err := c.http.RoundTrip(request(ctx, "GET", "/part/"+strconv.Itoa(n), nil, "priority", priority))
		if err != nil {
			return err
		}
		if _, err := io.ReadFull(response.Body, make([]byte, 1)); err != nil {
			return err
		}
		begun <- true
		if _, err := io.ReadAll(response.Body); err != nil {
			return err
		}
		if place := ended.Add(1); n == 3 {
			before.Store(place - 1)
		}
		return nil
	}
	err := atOnce(4, func(n int) error {
		if n < 3 {
			return part(n, "u=6")
		}
		<-begun
		return part(n, "u=1")
	})
	return before.Load(), err
}

// A WebSocket by extended CONNECT: a message goes to the backend and comes back.
func webSocket() error {
	return with(quic.Config{}, false, func(c *client) error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		select {
		case <-c.http.ReceivedSettings():
		case <-ctx.Done():
			return errors.New("the server sent no SETTINGS")
		}
		if !c.http.Settings().EnableExtendedConnect {
			return errors.New("no extended CONNECT in the SETTINGS")
		}
		stream, err := c.http.OpenRequestStream(ctx)
		if err != nil {
			return err
		}
		to, err := url.Parse("https://localhost:" + port + "/backend/websocket")
		if err != nil {
			return err
		}
		err = stream.SendRequestHeader(&http.Request{
			Method: "CONNECT",
			Proto:  "websocket",
			Host:   to.Host,
			URL:    to,
			Header: http.Header{"Sec-Websocket-Version": {"13"}},
		})
		if err != nil {
			return err
		}
		response, err := stream.ReadResponse()
		if err != nil || response.StatusCode != 200 {
			return fmt.Errorf("%v, %w", response, err)
		}
		message, mask := []byte("hello"), []byte("mask")
		frame := append([]byte{0x81, 0x80 | byte(len(message))}, mask...)
		for n, octet := range message {
			frame = append(frame, octet^mask[n%4])
		}
		if _, err := stream.Write(frame); err != nil {
			return err
		}
		echo := make([]byte, 2+len(message))
		if _, err := io.ReadFull(stream, echo); err != nil {
			return err
		}
		if !bytes.Equal(echo, append([]byte{0x81, byte(len(message))}, message...)) {
			return fmt.Errorf("%x", echo)
		}
		if _, err := stream.Write(append([]byte{0x88, 0x80}, mask...)); err != nil {
			return err
		}
		rest, err := io.ReadAll(stream)
		if err != nil || !bytes.Equal(rest, []byte{0x88, 0}) {
			return fmt.Errorf("%x, %w", rest, err)
		}
		return nil
	})
}

// The server closes a connection that is idle; a new one is served.
func idle() error {
	err := with(quic.Config{}, false, func(c *client) error {
		if err := c.hello(); err != nil {
			return err
		}
		select {
		case <-c.conn.Context().Done():
		case <-time.After(patience):
			return errors.New("the connection does not end")
		}
		var timeout *quic.IdleTimeoutError
		if cause := context.Cause(c.conn.Context()); !errors.As(cause, &timeout) {
			return cause
		}
		return nil
	})
	return errors.Join(err, get())
}

// On SIGTERM the server completes the responses in flight, then closes the connection.
func shutdown() error {
	return with(quic.Config{}, false, func(c *client) error {
		pid, err := strconv.Atoi(os.Args[3])
		if err != nil {
			return err
		}
		if err := c.hello(); err != nil {
			return err
		}
		var headed sync.WaitGroup
		headed.Add(10)
		go func() {
			headed.Wait()
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}()
		err = atOnce(10, func(int) error {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			response, err := c.http.RoundTrip(request(ctx, "GET", "/large", nil))
			headed.Done()
			if err != nil {
				return err
			}
			content, err := io.ReadAll(response.Body)
			if err != nil || !bytes.Equal(content, large()) {
				return fmt.Errorf("%d bytes, %w", len(content), err)
			}
			return nil
		})
		if err != nil {
			return err
		}
		select {
		case <-c.conn.Context().Done():
		case <-time.After(patience):
			return errors.New("the connection does not end")
		}
		var closed *quic.ApplicationError
		if cause := context.Cause(c.conn.Context()); !errors.As(cause, &closed) || closed.ErrorCode != 0x100 {
			return cause
		}
		return nil
	})
}
