// Sends requests with Go's own HTTP/2 client over TLS and prints each response as a line of JSON.
//
//	go-client URL SMALL-FILES
//
// Below URL the server has the files /files/0 ... /files/SMALL-FILES-1 and /large; /none must not exist.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Answer is a line of the output: a response.
type Answer struct {
	Step   string `json:"step"`
	Path   string `json:"path"`
	Proto  string `json:"proto"`
	Status int    `json:"status"`
	// Length is the value of content-length.
	Length int64 `json:"length"`
	// Bytes is the number of bytes of content received.
	Bytes int    `json:"bytes"`
	SHA256 string `json:"sha256"`
	Error  string `json:"error"`
}

var (
	connections int32
	output      sync.Mutex
)

func tell(value any) {
	line, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

func newClient() *http.Client {
	transport := &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			atomic.AddInt32(&connections, 1)
			var dialer net.Dialer
			return dialer.DialContext(ctx, network, address)
		},
	}
	return &http.Client{Transport: transport, Timeout: 30 * time.Second}
}

func ask(client *http.Client, step, method, base, path string, body io.Reader) {
	answer := Answer{Step: step, Path: path}
	defer func() { tell(answer) }()
	request, err := http.NewRequest(method, base+path, body)
	if err != nil {
		answer.Error = err.Error()
		return
	}
	response, err := client.Do(request)
	if err != nil {
		answer.Error = err.Error()
		return
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		answer.Error = err.Error()
	}
	sum := sha256.Sum256(content)
	answer.Proto, answer.Status, answer.Length = response.Proto, response.StatusCode, response.ContentLength
	answer.Bytes, answer.SHA256 = len(content), hex.EncodeToString(sum[:])
}

// Reads the beginning of a large response, then cancels the request.
func cancel(client *http.Client, base string) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	request, err := http.NewRequestWithContext(ctx, "GET", base+"/large", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.ReadFull(response.Body, make([]byte, 100_000)); err != nil {
		return err
	}
	stop()
	if _, err := io.ReadAll(response.Body); err != context.Canceled {
		return fmt.Errorf("the response was not cancelled: %v", err)
	}
	return nil
}

func main() {
	base := os.Args[1]
	files, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	client := newClient()
	// The first request opens the connection, which all others then share.
	ask(client, "first", "GET", base, "/files/0", nil)
	// The client runs fewer requests at a time than the server allows on a connection: beyond that it would open another connection.
	room := make(chan struct{}, 90)
	var all sync.WaitGroup
	for index := 0; index < files; index++ {
		all.Add(1)
		room <- struct{}{}
		go func(index int) {
			defer func() { <-room; all.Done() }()
			ask(client, "concurrent", "GET", base, "/files/"+strconv.Itoa(index), nil)
		}(index)
	}
	all.Wait()
	ask(client, "large", "GET", base, "/large", nil)
	ask(client, "head", "HEAD", base, "/large", nil)
	ask(client, "missing", "GET", base, "/none", nil)
	ask(client, "upload", "POST", base, "/files/1", strings.NewReader(strings.Repeat("u", 1_000_000)))
	for n := 0; n < 20; n++ {
		if err := cancel(client, base); err != nil {
			tell(Answer{Step: "cancelled", Error: err.Error()})
		}
		ask(client, "after", "GET", base, "/files/"+strconv.Itoa(files-1), nil)
	}
	ask(client, "again", "GET", base, "/large", nil)
	tell(map[string]int32{"connections": atomic.LoadInt32(&connections)})
}
