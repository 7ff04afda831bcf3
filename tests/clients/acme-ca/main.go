// Command acme-ca is a certificate authority that speaks ACME (RFC 8555). It resolves every name to 127.0.0.1.
//
//	acme-ca [OPTIONS] HTTP-PORT     checks names by HTTP-01 at that port; prints the port it listens on, ends with its standard input
//
// It runs the library of the test CA Pebble without the pauses and random refusals of Pebble, and keeps nothing on disk. ACME needs https;
// without -certificate the CA makes its own certificate, which clients cannot verify and must not try to.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/letsencrypt/challtestsrv"
	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
)

const daysOfCertificates = 90

func main() {
	port := flag.Int("port", 0, "its own `PORT`; 0: any")
	tlsPort := flag.Int("tls-port", 0, "the `PORT` where TLS-ALPN-01 is checked")
	certificate := flag.String("certificate", "", "the `FILE` of its own certificate")
	key := flag.String("key", "", "the `FILE` of the key")
	lifetime := flag.Uint64("lifetime", daysOfCertificates*24*60*60, "`SECONDS` that certificates are valid")
	account := flag.String("external-account", "", "`ID:KEY` of the accounts that may register, in base64url")
	hidesRenewals := flag.Bool("without-renewal-info", false, "does not say when certificates should be renewed (RFC 9773)")
	flag.Parse()
	httpPort, err := strconv.Atoi(flag.Arg(0))
	if err != nil {
		fail(fmt.Errorf("usage: acme-ca [OPTIONS] HTTP-PORT: %w", err))
	}
	// Switches off the pauses and random refusals by which Pebble exercises ACME clients.
	for _, name := range []string{"PEBBLE_VA_NOSLEEP", "PEBBLE_WFE_NONCEREJECT", "PEBBLE_AUTHZREUSE"} {
		value := "0"
		if name == "PEBBLE_VA_NOSLEEP" {
			value = "1"
		}
		if err := os.Setenv(name, value); err != nil {
			fail(err)
		}
	}
	logger := log.New(os.Stderr, "acme-ca ", 0)

	dns := freeAddress()
	names, err := challtestsrv.New(challtestsrv.Config{DNSAddrs: []string{dns}, Log: logger})
	if err != nil {
		fail(err)
	}
	names.SetDefaultDNSIPv4("127.0.0.1")
	names.SetDefaultDNSIPv6("")
	names.Run()

	store := db.NewMemoryStore()
	if id, secret, found := strings.Cut(*account, ":"); found {
		if err := store.AddExternalAccountKeyByID(id, secret); err != nil {
			fail(err)
		}
	}
	profiles := map[string]ca.Profile{"default": {Description: "the only one", ValidityPeriod: *lifetime}}
	authority := ca.New(logger, store, "", "ecdsa", 0, 1, profiles)
	validator := va.New(logger, httpPort, *tlsPort, false, dns, store)
	front := wfe.New(logger, store, validator, authority, nil, false, *account != "", 1, 1)
	handler := front.Handler()
	if *hidesRenewals {
		handler = withoutRenewalInfo(handler)
	}

	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		fail(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	own := ownCertificate(*certificate, *key)
	server := http.Server{
		Handler:   handler,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{own}},
	}
	fail(server.ServeTLS(listener, "", ""))
}

// withoutRenewalInfo removes the member `renewalInfo` (RFC 9773) from the directory that the handler answers with.
func withoutRenewalInfo(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if request.URL.Path != wfe.DirectoryPath {
			handler.ServeHTTP(response, request)
			return
		}
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, request)
		var directory map[string]any
		if err := json.Unmarshal(recorder.Body.Bytes(), &directory); err != nil {
			fail(err)
		}
		delete(directory, "renewalInfo")
		_ = json.NewEncoder(response).Encode(directory)
	})
}

func ownCertificate(certificate, key string) tls.Certificate {
	if certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			fail(err)
		}
		return pair
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		fail(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(24 * time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, private.Public(), private)
	if err != nil {
		fail(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// freeAddress returns an address of loopback whose port was free when it was chosen.
func freeAddress() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fail(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
