// Command acme-ca is a certificate authority that speaks ACME (RFC 8555), for names that all lead to 127.0.0.1.
//
//	acme-ca HTTP-PORT     checks names at that port; prints its own port, serves until standard input ends
//
// Its own certificate is good for nothing but having one, as ACME goes over https: clients must not verify it.
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
	"time"

	"github.com/letsencrypt/challtestsrv"
	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
)

const daysOfCertificates = 90

func main() {
	if len(os.Args) != 2 {
		fail(fmt.Errorf("usage: acme-ca HTTP-PORT"))
	}
	httpPort, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fail(err)
	}
	// Neither pauses nor refusals that are there to exercise clients.
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
	names, err := challtestsrv.New(challtestsrv.Config{DNSOneAddrs: []string{dns}, Log: logger})
	if err != nil {
		fail(err)
	}
	names.SetDefaultDNSIPv4("127.0.0.1")
	names.SetDefaultDNSIPv6("")
	names.Run()

	store := db.NewMemoryStore()
	authority := ca.New(logger, store, "", 0, 1, daysOfCertificates*24*60*60)
	validator := va.New(logger, httpPort, 0, false, dns)
	front := wfe.New(logger, store, validator, authority, false, false)

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fail(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	server := http.Server{
		Handler:   front.Handler(),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{ownCertificate()}},
	}
	fail(server.ServeTLS(listener, "", ""))
}

func ownCertificate() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		fail(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(24 * time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		fail(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// freeAddress is one whose UDP and TCP ports nobody has just now.
func freeAddress() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fail(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
