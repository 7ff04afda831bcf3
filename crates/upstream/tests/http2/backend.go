// Back ends for the tests: net/http with HTTP/2 over clear text, with TLS, with TLS but without HTTP/2, and with HTTP/2 over
// clear text and few streams. Their ports are printed in that order; the program ends with its standard input.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

var waiting, cancelled atomic.Int64

func handle(connections *atomic.Int64) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s te=%s", r.Proto, r.Header.Get("Te"))
	})
	mux.HandleFunc("/connections", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, connections.Load())
	})
	mux.HandleFunc("/big", func(w http.ResponseWriter, r *http.Request) {
		count, _ := strconv.Atoi(r.URL.Query().Get("n"))
		piece := make([]byte, 1000)
		for i := range count {
			for j := range piece {
				piece[j] = byte(i)
			}
			w.Write(piece)
		}
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, r.Body)
	})
	mux.HandleFunc("/refuse", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	})
	mux.HandleFunc("/trailers", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		io.WriteString(w, "message")
		w.Header().Set("Grpc-Status", "0")
	})
	mux.HandleFunc("/hints", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		io.WriteString(w, "hinted")
	})
	mux.HandleFunc("/wait", func(w http.ResponseWriter, r *http.Request) {
		waiting.Add(1)
		<-r.Context().Done()
		cancelled.Add(1)
	})
	mux.HandleFunc("/waiting", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, waiting.Load())
	})
	mux.HandleFunc("/cancelled", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, cancelled.Load())
	})
	mux.HandleFunc("/abort", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "begun")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	return mux
}

func certificate() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"localhost"},
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		log.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func main() {
	certificate := certificate()
	for _, kind := range []string{"clear", "both", "http1", "narrow"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		connections := new(atomic.Int64)
		protocols := new(http.Protocols)
		isClear := kind == "clear" || kind == "narrow"
		protocols.SetUnencryptedHTTP2(isClear)
		protocols.SetHTTP2(kind == "both")
		protocols.SetHTTP1(!isClear)
		server := &http.Server{
			Handler:   handle(connections),
			Protocols: protocols,
			TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
			ErrorLog:  log.New(io.Discard, "", 0),
			ConnState: func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					connections.Add(1)
				}
			},
		}
		if kind == "narrow" {
			server.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 5}
		}
		if isClear {
			go server.Serve(listener)
		} else {
			go server.ServeTLS(listener, "", "")
		}
		fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	}
	io.Copy(io.Discard, os.Stdin)
}
