// A backend made with the server of Go's standard library: HTTP/1.1 in cleartext, HTTP/2 and HTTP/1.1 over TLS.
//
//	go-backend CERTIFICATE KEY
//
// It prints its ports as a line of JSON, `{"http":1,"https":2}`, and ends when its standard input is closed.
package main

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// What /echo reports, in JSON, about the request it received.
type told struct {
	Proto    string              `json:"proto"`
	Method   string              `json:"method"`
	Host     string              `json:"host"`
	Target   string              `json:"target"`
	Fields   map[string][]string `json:"fields"`
	Length   int64               `json:"length"`
	Bytes   int                 `json:"bytes"`
	SHA256   string              `json:"sha256"`
	Trailers map[string][]string `json:"trailers"`
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	sum := sha256.Sum256(body)
	w.Header().Set("content-type", "application/json")
	answer := told{r.Proto, r.Method, r.Host, r.RequestURI, r.Header, r.ContentLength, len(body), hex.EncodeToString(sum[:]), r.Trailer}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		panic(err)
	}
}

// Number of responses of /content/ that are being written.
var contents int64

// /content/SIZE answers with SIZE bytes of text: `0000000 0000001 0000002 ...`
func content(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/content/"))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	if r.URL.RawQuery != "chunked" {
		w.Header().Set("content-length", strconv.Itoa(size))
	}
	atomic.AddInt64(&contents, 1)
	defer atomic.AddInt64(&contents, -1)
	w.Header().Set("content-type", "application/octet-stream")
	out := bufio.NewWriterSize(w, 8192)
	for written := 0; written < size; written += 8 {
		piece := fmt.Sprintf("%07d ", written/8)
		if left := size - written; left < 8 {
			piece = piece[:left]
		}
		if _, err := out.WriteString(piece); err != nil {
			return
		}
	}
	_ = out.Flush()
}

// /call behaves like a gRPC call: the request's content is sent back at once, the outcome (status 7) is in the trailers.
func call(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("trailer", "grpc-status, grpc-message")
	w.Header().Set("content-type", "application/grpc")
	body := io.Reader(r.Body)
	if r.ProtoMajor == 1 {
		// Over HTTP/1 Go's server does not read the request any more once it writes the response.
		content, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		body = bytes.NewReader(content)
	}
	w.WriteHeader(200)
	w.(http.Flusher).Flush()
	buffer := make([]byte, 4096)
	for {
		count, err := body.Read(buffer)
		if _, failed := w.Write(buffer[:count]); failed != nil {
			return
		}
		w.(http.Flusher).Flush()
		if err != nil {
			break
		}
	}
	w.Header().Set("grpc-status", "7")
	w.Header().Set("grpc-message", "not today")
}

// Number of responses of /instead that are being written.
var insteads int64

// /instead answers with `x-reproxy-url` (the URL is in the request's `x-go`) and with content that goes on until the client closes.
func instead(w http.ResponseWriter, r *http.Request) {
	atomic.AddInt64(&insteads, 1)
	defer atomic.AddInt64(&insteads, -1)
	if r.URL.RawQuery != "early" {
		_, _ = io.Copy(io.Discard, r.Body)
	}
	status, err := strconv.Atoi(r.Header.Get("x-status"))
	if err != nil {
		status = 200
	}
	w.Header().Set("x-reproxy-url", r.Header.Get("x-go"))
	w.WriteHeader(status)
	piece := bytes.Repeat([]byte("discarded "), 1000)
	for err = nil; err == nil; {
		_, err = w.Write(piece)
	}
}

// /abort promises 100 bytes, sends 5, and closes the connection.
func abort(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("content-length", "100")
	_, _ = w.Write([]byte("begin"))
	w.(http.Flusher).Flush()
	time.Sleep(50 * time.Millisecond)
	panic(http.ErrAbortHandler)
}

// A WebSocket (RFC 6455) that sends back each message. It expects messages in one frame, as browsers send them.
func webSocket(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Sec-WebSocket-Key")
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || key == "" {
		http.Error(w, "this is a WebSocket", http.StatusBadRequest)
		return
	}
	conn, stream, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	fmt.Fprintf(stream, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
	for {
		if err := stream.Flush(); err != nil {
			return
		}
		head, payload, err := readFrame(stream)
		if err != nil {
			return
		}
		const ping, pong, end = 0x89, 0x8a, 0x88
		if head == ping {
			head = pong
		}
		writeFrame(stream, head, payload)
		if head == end {
			_ = stream.Flush()
			return
		}
	}
}

func readFrame(stream io.Reader) (byte, []byte, error) {
	head := make([]byte, 2)
	if _, err := io.ReadFull(stream, head); err != nil {
		return 0, nil, err
	}
	length := uint64(head[1] & 0x7f)
	if more := map[uint64]int{126: 2, 127: 8}[length]; more > 0 {
		field := make([]byte, 8)
		if _, err := io.ReadFull(stream, field[8-more:]); err != nil {
			return 0, nil, err
		}
		length = binary.BigEndian.Uint64(field)
	}
	if head[1]&0x80 == 0 || length > 1<<24 {
		return 0, nil, fmt.Errorf("the bytes are no WebSocket frame of a client")
	}
	rest := make([]byte, 4+length)
	if _, err := io.ReadFull(stream, rest); err != nil {
		return 0, nil, err
	}
	mask, payload := rest[:4], rest[4:]
	for index := range payload {
		payload[index] ^= mask[index%4]
	}
	return head[0], payload, nil
}

func writeFrame(stream io.Writer, head byte, payload []byte) {
	frame := []byte{head}
	switch length := len(payload); {
	case length < 126:
		frame = append(frame, byte(length))
	case length < 1<<16:
		frame = append(frame, 126, byte(length>>8), byte(length))
	default:
		field := make([]byte, 9)
		field[0] = 127
		binary.BigEndian.PutUint64(field[1:], uint64(length))
		frame = append(frame, field...)
	}
	_, _ = stream.Write(append(frame, payload...))
}

func listen() []net.Listener {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	// "localhost" may also mean ::1, so the backend listens there on the same port.
	port := first.Addr().(*net.TCPAddr).Port
	second, err := net.Listen("tcp", "[::1]:"+strconv.Itoa(port))
	if err != nil {
		return []net.Listener{first}
	}
	return []net.Listener{first, second}
}

func main() {
	var connections int64
	released := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", echo)
	mux.HandleFunc("/echo/", echo)
	mux.HandleFunc("/content/", content)
	mux.HandleFunc("/call", call)
	mux.HandleFunc("/instead", instead)
	mux.HandleFunc("/insteads", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, atomic.LoadInt64(&insteads))
	})
	mux.HandleFunc("/contents", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, atomic.LoadInt64(&contents))
	})
	mux.HandleFunc("/abort", abort)
	mux.HandleFunc("/ws", webSocket)
	// /hold answers after a request for /release: a page that waits for it is complete only when a script of the page asks for /release.
	mux.HandleFunc("/hold", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-released:
		case <-time.After(20 * time.Second):
		}
	})
	mux.HandleFunc("/release", func(w http.ResponseWriter, r *http.Request) {
		released <- struct{}{}
	})
	mux.HandleFunc("/connections", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, atomic.LoadInt64(&connections))
	})
	server := &http.Server{
		Handler:  mux,
		ErrorLog: log.New(io.Discard, "", 0),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				atomic.AddInt64(&connections, 1)
			}
		},
	}
	clear, tls := listen(), listen()
	for _, listener := range clear {
		go func(listener net.Listener) { panic(server.Serve(listener)) }(listener)
	}
	for _, listener := range tls {
		go func(listener net.Listener) { panic(server.ServeTLS(listener, os.Args[1], os.Args[2])) }(listener)
	}
	port := func(listeners []net.Listener) int { return listeners[0].Addr().(*net.TCPAddr).Port }
	fmt.Printf("{\"http\":%d,\"https\":%d}\n", port(clear), port(tls))
	_, _ = io.Copy(io.Discard, os.Stdin)
}
