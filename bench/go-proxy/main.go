// A reverse proxy made with Go's standard library, as a yardstick of the comparison.
//
//	go-proxy -backend http://127.0.0.1:8080 -http 127.0.0.1:80 -https 127.0.0.1:443 -cert FILE -key FILE
package main

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"sync"
	"time"
)

// Buffers for bodies that are used again, so that a response need not allocate one.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	return *b.pool.Get().(*[]byte)
}

func (b *buffers) Put(buffer []byte) {
	b.pool.Put(&buffer)
}

// The trusted certificates for backends: those of the system, or those in a file.
func roots(file string) *x509.CertPool {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		log.Fatalf("%s has no certificate", file)
	}
	return pool
}

func main() {
	clear := flag.String("http", "", "address for HTTP/1.1 in cleartext")
	secure := flag.String("https", "", "address for HTTP/2 and HTTP/1.1 with TLS")
	certificate := flag.String("cert", "", "certificate file")
	key := flag.String("key", "", "key file")
	ca := flag.String("ca", "", "certificates that back ends may have (default: the system's)")
	backend := flag.String("backend", "", "URL of the back end")
	most := flag.String("max-tls", "1.3", "the highest version of TLS: 1.2 or 1.3")
	flag.Parse()

	target, err := url.Parse(*backend)
	if err != nil || target.Host == "" {
		log.Fatalf("not the URL of a backend: %q", *backend)
	}
	transport := &http.Transport{
		// As many idle connections are kept as a case has requests at a time; the default is two.
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     10 * time.Minute,
		// By default the transport requests gzip from the backend and decompresses it.
		DisableCompression: true,
		ReadBufferSize:     64 << 10,
		TLSClientConfig:    &tls.Config{RootCAs: roots(*ca)},
		ForceAttemptHTTP2:  true,
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = transport
	proxy.BufferPool = &buffers{sync.Pool{New: func() any {
		buffer := make([]byte, 64<<10)
		return &buffer
	}}}
	versions := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}
	failed := make(chan error)
	serve := func(address string, listen func(*http.Server) error) {
		if address == "" {
			return
		}
		server := &http.Server{
			Addr:    address,
			Handler: proxy,
			// Messages about clients that close their connections are dropped.
			ErrorLog:    log.New(io.Discard, "", 0),
			IdleTimeout: 10 * time.Minute,
			TLSConfig:   &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: versions[*most]},
		}
		go func() { failed <- listen(server) }()
	}
	serve(*clear, (*http.Server).ListenAndServe)
	serve(*secure, func(server *http.Server) error { return server.ListenAndServeTLS(*certificate, *key) })
	log.Fatal(<-failed)
}
